"""Healthy models: what fails is in `inject.py`."""

import torch


def layers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    return model.eval().requires_grad_(False), (torch.randn(6, 4),)


def large():
    torch.manual_seed(0)
    return (lambda x: torch.relu(x.sin() - 0.5) * 2), (torch.randn(512, 1024),)
