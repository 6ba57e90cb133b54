"""`x % inf` is x, and NaN in the vector code of the compiled function."""
import torch
def f(x, y):
    return torch.remainder(x, y)
def build():
    return f, (torch.full((16,), 5.5), torch.full((16,), float("inf")))
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs))
