"""A batched matmul with one column returns int64 for uint8, with values that have not wrapped around."""
import torch
def f(x, y):
    return torch.bmm(x, y)
def build():
    return f, (torch.full((1, 2, 3), 100, dtype=torch.uint8), torch.full((1, 3, 1), 2, dtype=torch.uint8))
if __name__ == "__main__":
    model, inputs = build()
    torch.testing.assert_close(torch.compile(model)(*inputs), model(*inputs))
