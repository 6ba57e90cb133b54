"""`x // y` is one too large where the quotient rounds up to an integer: 1.0 // 0.1 is 9."""
import torch
def f(x, y):
    return x // y
def build():
    return f, (torch.tensor([1.0, 0.5, 6.0, 1.0]), torch.tensor([0.1, 0.1, 0.2, 1 / 3]))
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs))
