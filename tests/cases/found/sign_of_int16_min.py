"""The smallest or largest of the signs of int16 numbers cannot be compiled: g++ rejects the kernel."""
import torch
def f(x):
    return torch.sign(x).amin()
def build():
    return f, (torch.tensor([3, -2, 0], dtype=torch.int16),)
if __name__ == "__main__":
    model, inputs = build()
    assert torch.equal(torch.compile(model)(*inputs), model(*inputs))
