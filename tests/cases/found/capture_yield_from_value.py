"""The value of `yield from` is None in place of what the inner generator returned."""
import torch
def inner():
    yield 1
    return "all"
def outer():
    value = yield from inner()
    yield value
def f(x):
    return x + 1, list(outer())
def build():
    return f, (torch.ones(3),)
if __name__ == "__main__":
    model, inputs = build()
    assert torch.compile(model, backend="eager")(*inputs)[1] == model(*inputs)[1]
