"""Seeds: the names of programs, and which a hunt judges next. Needs no torch.

A seed names the generator and a number (`operators-1f3a`). Several joined by `+` are one program, whose graph
has the graphs of all of them next to one another.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import deque
from collections.abc import Collection, Iterator

from torchrepro.hunt.registry import Generator, chosen_generators, generator_named
from torchrepro.hunt.settings import HuntSettings
from torchrepro.nouns.errors import TorchReproError

_SEED = re.compile(r"([a-z_]+)-([0-9a-f]{1,32})")
TOGETHER = "+"
"""Joins the seeds of programs that are one program."""


def parse_seed(seed: str) -> tuple[str, int]:
    """Return the generator and the number of a seed."""
    found = _SEED.fullmatch(seed)
    if found is None:
        raise TorchReproError(
            f"{seed!r} is no seed of a hunt", next_step="copy one from the log of a hunt: operators-1f3a"
        )
    return found[1], int(found[2], 16)


def generator_of(seed: str) -> Generator:
    """Return the generator that a seed names."""
    return generator_named(parse_seed(seed.partition(TOGETHER)[0])[0])


def seeds_of(generator: Generator, hunt: int) -> Iterator[str]:
    """Return the seeds of a generator in a hunt."""
    return (f"{generator.name}-{hunt:x}{number:06x}" for number in itertools.count())


class NewSeeds:
    """The seeds that a hunt has not judged yet, in batches; each batch is of one generator."""

    def __init__(self, settings: HuntSettings, seen: Collection[str]) -> None:
        self._batch = settings.batch
        self._generators = chosen_generators(settings.generators)
        self._given = None if settings.seeds is None else deque(x for x in settings.seeds if x not in seen)
        self._streams = {
            each.name: (seed for seed in seeds_of(each, settings.seed) if seed not in seen)
            for each in self._generators
        }
        self._choices = random.Random(settings.seed)
        self.left = math.inf if settings.programs is None else settings.programs
        """How many more may be taken."""

    def take(self) -> list[str]:
        """Return the next batch; it is empty if there are no more."""
        count = int(min(self._batch, self.left))
        taken = self._of_given(count) if self._given is not None else self._of_streams(count)
        self.left -= len(taken)
        if not taken:
            self.left = 0
        return taken

    def _of_given(self, count: int) -> list[str]:
        taken: list[str] = []
        while self._given and len(taken) < count:
            if taken and generator_of(taken[0]) != generator_of(self._given[0]):
                break
            taken.append(self._given.popleft())
        return taken

    def _of_streams(self, count: int) -> list[str]:
        weights = [each.weight for each in self._generators]
        stream = self._streams[self._choices.choices(self._generators, weights)[0].name]
        return [next(stream) for _ in range(count)]
