"""`any` of uint8 returns uint8, and bool when compiled; so what follows counts without wrapping around."""
import torch
def f(x):
    return x.any(0) * 200 + 100
def build():
    return f, (torch.ones(3, 5, dtype=torch.uint8),)
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs))
