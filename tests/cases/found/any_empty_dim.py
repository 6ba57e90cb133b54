"""`any` over no dimensions (`dim=()`) reduces over all of them when compiled: eager keeps the shape."""
import torch
def f(x):
    return torch.any(x, dim=())
def build():
    return f, (torch.ones(2),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs))
