"""Upsampling a constant infinity with aligned corners gives NaN: a + (b - a) * t in place of weights."""
import torch
import torch.nn.functional as F
def f(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)
def build():
    return f, (torch.full((1, 1, 2, 2), float("inf")),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs), equal_nan=True)
