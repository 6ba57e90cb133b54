"""`lerp` with a complex number as weight does not compile: the decomposition compares it with 0.5."""
import torch
def f(x, y):
    return torch.lerp(x, y, 0.5 + 1j)
def build():
    return f, (torch.ones(4, dtype=torch.complex64), torch.zeros(4, dtype=torch.complex64))
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs))
