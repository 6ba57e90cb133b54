"""A program: what a generator makes of a seed, the same whenever it is asked again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from torchrepro.cut.batches import joined
from torchrepro.engine.processes.fresh_process import job_named
from torchrepro.hunt.registry import SHARED, Draw, generator_named
from torchrepro.hunt.seeds import TOGETHER, parse_seed
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.generators import capture_rng_state, same_randomness


@dataclass(frozen=True, eq=False)
class Program:
    """A program, or none where its seed leads to none."""

    seed: str
    repro: Repro | None


def program_of(seed: str, sources: Sequence[Path] = ()) -> Program:
    """Return the program of a seed. `sources` are the bundles from which some generators make programs."""
    repros = [_generated(one, sources) for one in seed.split(TOGETHER)]
    present = [repro for repro in repros if repro is not None]
    if len(present) < len(repros):
        return Program(seed, None)
    return Program(seed, present[0] if len(present) == 1 else joined(present).repro)


def _generated(seed: str, sources: Sequence[Path]) -> Repro | None:
    name, number = parse_seed(seed)
    generate = job_named(generator_named(name).function)
    choices = random.Random(f"{name} {number:x}")
    draw = Draw(choices, random.Random(f"{name} shared {number // SHARED:x}"), tuple(sources))
    with same_randomness(capture_rng_state()):
        torch.manual_seed(choices.getrandbits(60))
        random.seed(choices.getrandbits(60))
        np.random.seed(choices.getrandbits(32))
        repro: Repro | None = generate(draw)
    return repro
