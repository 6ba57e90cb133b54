"""The gradient of `avg_pool2d` cannot be compiled if the padding is a tuple of one number."""
import torch
def f(x):
    return torch.nn.functional.avg_pool2d(x, 3, 1, (1,))
def build():
    return f, (torch.ones(1, 1, 4, 4, requires_grad=True),)
def gradient(function, x):
    x = x.detach().requires_grad_()
    function(x).sum().backward()
    return x.grad
if __name__ == "__main__":
    model, (x,) = build()
    assert torch.equal(gradient(torch.compile(model), x), gradient(model, x))
