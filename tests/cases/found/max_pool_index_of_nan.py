"""Indices of max-pooling over NaN: eager returns the last NaN of a window, compiled code the first."""
import torch
import torch.nn.functional as F
def f(x):
    return F.max_pool2d(x, 2, return_indices=True)
def build():
    nan = float("nan")
    return f, (torch.tensor([[[[nan, nan], [nan, 1.0]]]]),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs), equal_nan=True)
