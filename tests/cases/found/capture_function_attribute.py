"""Whether a function has an attribute is not guarded: a counter that a first call sets stays at 1."""
import torch
def scaled(x):
    return x * 2
def f(x):
    scaled.calls = getattr(scaled, "calls", 0) + 1
    return scaled(x), scaled.calls
def build():
    return f, (torch.ones(3),)
def call(function, inputs):
    vars(scaled).clear()
    return [function(*inputs)[1] for _ in range(3)]
if __name__ == "__main__":
    model, inputs = build()
    assert call(torch.compile(model, backend="eager"), inputs) == call(model, inputs)
