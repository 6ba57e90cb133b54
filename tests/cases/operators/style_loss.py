"""The style loss of a small CNN on a custom operator, once with a wrong fake kernel and once with a right one."""

import torch
import torch.nn.functional as F
from fastops import gram, honest_gram
from torch import nn


class Style(nn.Module):
    def __init__(self, *, honest: bool) -> None:
        super().__init__()
        self.honest = honest
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.proj = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv(image))
        flat, scale = x.flatten(2), 1.0 / x.shape[-1] ** 2
        g = honest_gram(flat, scale) if self.honest else gram(flat, scale)
        projected: torch.Tensor = self.proj(torch.softmax(g * 3, -1))
        return projected.mean((1, 2))


def build() -> tuple[nn.Module, torch.Tensor]:
    return Style(honest=False), torch.rand(2, 3, 8, 8)


def healthy() -> tuple[nn.Module, torch.Tensor]:
    return Style(honest=True), torch.rand(2, 3, 8, 8)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = Style(honest=False)
    loss = torch.compile(net)(torch.rand(2, 3, 8, 8)).pow(2).mean()
    loss.backward()
    print(loss.item())
