"""The mean of `var_mean` over no elements is 0 in place of NaN."""
import torch
def f(x):
    return torch.var_mean(x)
def build():
    return f, (torch.empty(0, 5),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs), equal_nan=True)
