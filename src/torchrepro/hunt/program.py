"""A program: what a generator makes of a seed, the same whenever it is asked again.

A seed names the generator and a number (`operators-1f3a`). Several joined by `+` are one program, whose graph
has the graphs of all of them next to one another.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from torchrepro.cut.batches import joined
from torchrepro.engine.processes.fresh_process import job_named
from torchrepro.hunt.registry import SHARED, Draw, Generator, generator_named
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.generators import capture_rng_state, same_randomness

_SEED = re.compile(r"([a-z_]+)-([0-9a-f]{1,32})")
TOGETHER = "+"
"""Joins the seeds of programs that are one program."""


@dataclass(frozen=True, eq=False)
class Program:
    """A program, or none where its seed leads to none."""

    seed: str
    repro: Repro | None


def generator_of(seed: str) -> Generator:
    """Return the generator that a seed names."""
    return generator_named(_parsed(seed.partition(TOGETHER)[0])[0])


def program_of(seed: str, sources: Sequence[Path] = ()) -> Program:
    """Return the program of a seed. `sources` are the bundles from which some generators make programs."""
    repros = [_generated(one, sources) for one in seed.split(TOGETHER)]
    present = [repro for repro in repros if repro is not None]
    if len(present) < len(repros):
        return Program(seed, None)
    return Program(seed, present[0] if len(present) == 1 else joined(present).repro)


def seeds(generator: Generator, hunt: int, start: int = 0) -> Iterator[str]:
    """Yield the seeds of a generator in a hunt, from a number on."""
    number = start
    while True:
        yield f"{generator.name}-{hunt:x}{number:06x}"
        number += 1


def _generated(seed: str, sources: Sequence[Path]) -> Repro | None:
    name, number = _parsed(seed)
    generate = job_named(generator_named(name).function)
    choices = random.Random(f"{name} {number:x}")
    draw = Draw(choices, random.Random(f"{name} shared {number // SHARED:x}"), tuple(sources))
    with same_randomness(capture_rng_state()):
        torch.manual_seed(choices.getrandbits(60))
        random.seed(choices.getrandbits(60))
        np.random.seed(choices.getrandbits(32))
        repro: Repro | None = generate(draw)
    return repro


def _parsed(seed: str) -> tuple[str, int]:
    found = _SEED.fullmatch(seed)
    if found is None:
        raise TorchReproError(
            f"{seed!r} is no seed of a hunt", next_step="copy one from the log of a hunt: operators-1f3a"
        )
    return found[1], int(found[2], 16)
