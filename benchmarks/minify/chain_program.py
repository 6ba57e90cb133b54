"""A chain of mixer blocks as a user's program: `python chain_program.py BLOCKS`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "cases" / "injected" / "_common"))
import driver
import models
import torch


def build():
    model = models.Mixer(n=int(sys.argv[1]))
    return model, (torch.randn(2, 16, 32),), {}


if __name__ == "__main__":
    driver.main(build)
