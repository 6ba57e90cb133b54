"""`addcmul` with value 0: eager multiplies the value first, so a product that overflows does not count."""
import torch
def f(x, y):
    return torch.addcmul(x, y, y, value=0)
def build():
    return f, (torch.ones(4), torch.full((4,), 3e38))
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs), equal_nan=True)
