"""A gate that Python decides: `torchrepro capture examples/gated.py:build` says why it is two graphs."""

import torch


def gated(x, weight):
    h = torch.relu(x @ weight)
    if h.mean() > 0:
        h = h * 2
    return h


def build():
    return gated, (torch.ones(4, 8), torch.ones(8, 2))
