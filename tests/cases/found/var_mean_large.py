"""The mean of `var_mean` over large float32 numbers overflows: eager accumulates in float64."""
import torch
def f(x):
    return torch.var_mean(x, 1)
def build():
    return f, (torch.tensor([[3e38, 3e38, -3e38, 3e38]]),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs)[1], model(*inputs)[1])
