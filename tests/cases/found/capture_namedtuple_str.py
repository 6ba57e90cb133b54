"""str() of a namedtuple that was built with fewer arguments than fields: an internal error of Dynamo."""
import collections
import torch
Point = collections.namedtuple("Point", ["across", "down"], defaults=[0])
def f(x):
    return x + 1, str(Point(2))
def build():
    return f, (torch.ones(3),)
if __name__ == "__main__":
    model, inputs = build()
    assert torch.compile(model, backend="eager")(*inputs)[1] == model(*inputs)[1]
