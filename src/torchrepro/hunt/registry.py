"""The generators of programs: to add one, write a file and a row.

A generator is a function `generate(draw)` that returns a `Repro`, or None where the draw led to no program.
Its choices come from the `Draw` and from the generators of torch, Python and NumPy, which were seeded before,
so that a seed gives the same program again. It need not check the program: what eager refuses
is left out before anything is compiled, and so is what draws random numbers. But it must not make programs
that read memory which nothing has written: these have no right answer.

What judges programs is `hunt/jobs.py`, and `hunt/python_jobs.py` where they are Python.

Importing this table imports no generator and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from torchrepro.nouns.errors import TorchReproError


@dataclass(frozen=True, slots=True)
class Draw:
    """What a generator may choose by."""

    random: Random
    shared: Random
    """Its draws are the same for `SHARED` seeds in a row, which are judged together: for what separates
    compilations, such as settings of the compiler, and for what takes time to load."""
    sources: Sequence[Path] = ()
    """Bundles of graphs, in a fixed order."""


SHARED = 64
"""How many seeds in a row have the same shared draws."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A way to make programs."""

    name: str
    function: str
    """`package.module:function`."""
    weight: int
    """Its share of the programs, against the others."""
    about: str
    prepare: str = ""
    """A function that the search process calls once, so that no child has to: for what takes long."""
    needs_sources: bool = False
    """Its programs are made from bundles."""
    graphs: bool = True
    """Whether its programs are graphs; if not, they are Python, and its job reduces what fails: two failures
    with one signature are one failure."""

    @property
    def jobs(self) -> str:
        """The module whose `judge` and `save` are given its programs."""
        return "torchrepro.hunt.jobs" if self.graphs else "torchrepro.hunt.python_jobs"

    @property
    def seconds_alone(self) -> float:
        """The time limit for a program that is judged alone, and saved if it fails."""
        return 90.0 if self.graphs else 400.0


GENERATORS: tuple[Generator, ...] = (
    Generator(
        "operators",
        "torchrepro.hunt.generators.operators:generate",
        6,
        "torch's operators on its own sample inputs, alone and in chains",
        prepare="torchrepro.hunt.generators.operators:prepare",
    ),
    Generator(
        "windows",
        "torchrepro.hunt.generators.windows:generate",
        2,
        "a few ops out of real graphs, on the values that they had there",
        needs_sources=True,
    ),
    Generator(
        "mutations",
        "torchrepro.hunt.generators.mutations:generate",
        3,
        "the other programs with views, writes in place, aliases, other dtypes, autocast, options",
        prepare="torchrepro.hunt.generators.operators:prepare",
        needs_sources=True,
    ),
    Generator(
        "python",
        "torchrepro.hunt.generators.python_programs:generate",
        1,
        "functions with control flow, mutation and closures, captured by Dynamo and by torchrepro",
        graphs=False,
    ),
)


def generator_named(name: str) -> Generator:
    """Return the generator with a name."""
    for generator in GENERATORS:
        if generator.name == name:
            return generator
    known = ", ".join(generator.name for generator in GENERATORS)
    raise TorchReproError(f"there is no generator {name!r}", next_step=f"choose from {known}")


def chosen_generators(names: Sequence[str]) -> tuple[Generator, ...]:
    """Return the generators with these names; all of them if there are none."""
    return tuple(map(generator_named, names)) or GENERATORS
