"""Dropout with p=1 of NaN: eager multiplies by zero and keeps NaN, compiled code returns 0."""
import torch
import torch.nn.functional as F
def f(x):
    return F.dropout(x, p=1.0, training=True)
def build():
    return f, (torch.tensor([float("nan"), float("inf"), 1.0]),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs), equal_nan=True)
