"""The gradient of a result whose elements share memory (`unfold`) is copied into memory of that kind: wrong."""
import torch
def f(x):
    return (x * 2).unfold(-1, 2, 1)
def build():
    return f, (torch.ones(3, requires_grad=True),)
def gradient(model, x):
    x = x.detach().requires_grad_()
    model(x).backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return x.grad
if __name__ == "__main__":
    model, (x,) = build()
    torch.testing.assert_close(gradient(torch.compile(model), x), gradient(model, x))
