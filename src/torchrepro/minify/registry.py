"""The passes, in the order in which they run: one row each. A new pass is a file and a row."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchrepro.errors import TorchReproError

if TYPE_CHECKING:
    from torchrepro.minify.problem import Problem

Run = Callable[["Problem"], None]


@dataclass(frozen=True, slots=True)
class Pass:
    """A way to make a repro smaller: `run` asks the problem about candidates and adopts those that fail."""

    name: str
    run: Run
    description: str
    once: bool = False
    """A guess that saves work at the start; the others are repeated until none of them finds anything."""


def passes() -> tuple[Pass, ...]:
    """Every pass, in order."""
    return ()


def chosen_passes(only: Iterable[str] = (), without: Iterable[str] = ()) -> tuple[Pass, ...]:
    """The passes to run, by name; an unknown name is an error that says which there are."""
    known = {row.name: row for row in passes()}
    for name in (*only, *without):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise TorchReproError(f"no pass is called {name!r}", next_step=hint)
    wanted = set(only) or set(known)
    return tuple(row for row in known.values() if row.name in wanted and row.name not in set(without))
