"""The gradient of a division by an integer buffer that the same call counts up is divided by one count more."""
import torch
class Averaging(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(1))
    def forward(self, x):
        self.count += 1
        return x / self.count
def build():
    return Averaging(), (torch.ones(2, requires_grad=True),)
def gradient(model, x):
    x = x.detach().requires_grad_()
    model(x).sum().backward()
    return x.grad
if __name__ == "__main__":
    model, (x,) = build()
    torch.testing.assert_close(gradient(torch.compile(model), x), gradient(build()[0], x))
