"""An error of `requires_grad_` that the program catches is an internal error of Dynamo."""
import torch
def f(x):
    try:
        return (x * 2).requires_grad_(False)
    except RuntimeError:
        return x
def build():
    return f, (torch.ones(3, requires_grad=True),)
if __name__ == "__main__":
    model, inputs = build()
    assert torch.equal(torch.compile(model, backend="eager")(*inputs), model(*inputs))
