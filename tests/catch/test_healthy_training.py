"""A healthy training under a level 4 watch raises no alarm, however many of its steps rounding decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import torchrepro

PROGRAM = """
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 100)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


width, layers, steps = map(int, sys.argv[1:])
torch.manual_seed(0)
net = Model(width, layers)
model = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(steps):
    ids = torch.randint(0, 100, (8, 32))
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("steps", step + 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "layers", "steps"),
    [
        (16, 1, 10),
        pytest.param(64, 2, 60, marks=[pytest.mark.thorough, pytest.mark.timeout(400)]),
    ],
)
def test_a_healthy_training_with_dropout_raises_no_alarm(
    width: int, layers: int, steps: int, tmp_path: Path
) -> None:
    program, out = tmp_path / "training.py", tmp_path / "out"
    program.write_text(PROGRAM)
    ended = torchrepro("run", "--level", 4, "--minify", "--out", out, program, width, layers, steps)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"steps {steps}\n"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["bundles"] == []
    assert summary["checked"] == 2 * steps, "forward and backward of each"
    told = f"nothing failed in {summary['graphs']} graphs; {2 * steps} calls compared with eager"
    assert ended.stderr == f"torchrepro: {told}\n"
