"""A small CNN with one layer held as uint8 codes, which are stretched to [-1, 1] by their range.

Eager is right. With inductor on a CPU, torch 2.13.0 computes the minimum of the codes as 0 (pytorch/pytorch
issue 191499: inactive lanes of a vector take part in the reduction), and every output is wrong, silently.
"""

import torch
import torch.nn.functional as F
from torch import nn

NO_GRAD = True  # inference only; docs/compare.md lists what else a file can say


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.squeeze, self.excite = nn.Linear(channels, channels // 2), nn.Linear(channels // 2, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.second(F.silu(self.first(x))))
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        return F.relu(x + y * scale[:, :, None, None])


class QuantisedCnn(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.before = nn.Sequential(*(Residual(channels) for _ in range(3)))
        self.after = nn.Sequential(*(Residual(channels) for _ in range(3)))
        self.head = nn.Linear(channels, 10)
        codes = torch.randint(90, 200, (channels, channels), dtype=torch.uint8)
        self.register_buffer("codes", codes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.before(F.relu(self.stem(image)))
        low, high = self.codes.amin(), self.codes.amax()
        mixing = (self.codes.float() - low.float()) / (high.float() - low.float()) * 2 - 1
        x = F.relu(x + torch.einsum("oc,bchw->bohw", mixing * 0.3, x))
        return F.log_softmax(self.head(self.after(x).mean((2, 3))), -1)


def build():
    torch.manual_seed(0)
    return QuantisedCnn().eval(), (torch.rand(2, 3, 12, 12),)
