"""After a graph break in a `with` block, Dynamo fails on an earlier `try` there if its handler is long."""
import torch
def f(x):
    with torch.no_grad():
        try:
            y = x + 1
        except ValueError:
            y = x.sin().cos().tan().exp().abs().neg().log().sqrt().ceil().floor().round().trunc()
            y = y.sin().cos().tan().exp().abs().neg().log().sqrt().ceil().floor().round().trunc()
        print("this breaks the graph")
    return y
def build():
    return f, (torch.ones(3),)
if __name__ == "__main__":
    model, inputs = build()
    assert torch.equal(torch.compile(model, backend="eager")(*inputs), model(*inputs))
