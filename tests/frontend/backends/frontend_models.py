"""Small models that train: ordinary ones, and ones that capture has to break in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Batch norm and dropout: buffers that change, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 18)
        self.out = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unsqueeze(0)
        query, key, value = self.project(x).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(self.norm(x + self.out(mixed))).squeeze(0)


class Printing(nn.Module):
    """A break between two layers, and a counter that the module keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        self.calls += 1
        print(self.calls)
        return self.last(hidden) + hidden.mean()


class Branching(nn.Module):
    """Numbers taken from tensors decide, and take part."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 3)
        self.down = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().mean().item()
        with torch.no_grad():
            self.seen.add_(scale)
        layer = self.up if x.sum() > 0 else self.down
        return layer(x) * scale


class Modes(nn.Module):
    """`no_grad` and mixed precision, with a break inside of each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            offset = self.first(x)
            print(end="")
            offset = offset.mean(0)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.first(x)
            print(end="")
            hidden = torch.relu(hidden + offset)
            out = self.last(hidden)
        return out.float()


MODELS: tuple[type[nn.Module], ...] = (Mlp, Attention, Printing, Branching, Modes)


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [
        (torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)) for _ in range(count)
    ]


def trained(
    make: type[nn.Module],
    capture: Callable[[nn.Module], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    *,
    accumulate: int = 1,
) -> list[Any]:
    """After each step: the loss, parameters, buffers and gradients."""
    torch.manual_seed(0)
    model = make()
    call = capture(model)
    steps = optimizer(model.parameters(), lr=0.05)
    told: list[Any] = []
    for number, (x, y) in enumerate(batches(3 * accumulate), start=1):
        loss = F.mse_loss(call(x), y)
        loss.backward()
        gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        if number % accumulate == 0:
            steps.step()
            steps.zero_grad()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        told.append((loss.detach().clone(), gradients, state))
    return told
