"""Proposal: what a rank is about to compile, as the others hear it; and the words for a disagreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from torchrepro.nouns.errors import TorchReproError
from torchrepro.ranks.agreement import name_ranks

T = TypeVar("T")

_END = "(the end)"


@dataclass(frozen=True, slots=True, order=True)
class BreakPoint:
    """A region ends before this instruction."""

    function: str
    """The outermost function, by its qualified name."""
    index: int
    """Of the instruction in its program."""
    visit: int = 1
    """The how-manieth time it is come to: an instruction in a loop."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A graph that a rank would compile. Equal on all ranks where they do the same."""

    entry: str
    """What is traced, and from where: qualified name, file without its directory, line, index."""
    breaks: frozenset[BreakPoint]
    """All that are known for this entry: found by the rank itself, or taken over from others."""
    ops: tuple[str, ...]
    """The graph, a line for each node, without what differs between ranks (addresses, numbers of devices)."""
    digest: str
    """Of the ops and of the structure of what comes out."""


@dataclass(frozen=True, slots=True)
class Agreement:
    breaks: frozenset[BreakPoint]
    """Those of all ranks together."""
    restart: bool
    """Whether every rank has to trace again, with these breaks, and to propose what it then has."""


class RanksDisagree(TorchReproError):
    """The ranks of a job do not trace the same. Raised on all of them, at the same step."""

    def __init__(self, fact: str, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(fact, next_step='let all ranks take the same path, or trace without ranks="agree"')
        self.groups = tuple(tuple(group) for group in groups)
        """The ranks that agree with one another, group by group."""


def grouped(values: Mapping[int, T]) -> dict[T, list[int]]:
    """Which ranks have the same."""
    groups: dict[T, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    return groups


def different_steps(steps: Mapping[int, str]) -> RanksDisagree:
    """Ranks that are not at the same place in their programs."""
    groups = grouped(steps)
    told = "; ".join(f"{step} on {name_ranks(ranks)}" for step, ranks in groups.items())
    return RanksDisagree(f"the ranks are out of step: {told}", list(groups.values()))


def different_graphs(entry: str, ops: Mapping[int, Sequence[str]]) -> RanksDisagree:
    """Ranks whose graphs differ although all have the same breaks: names the first operation that does."""
    for number, row in enumerate(zip_longest(*ops.values(), fillvalue=_END), start=1):
        groups = grouped(dict(zip(ops, row, strict=True)))
        if len(groups) > 1:
            told = "; ".join(f"`{op}` on {name_ranks(ranks)}" for op, ranks in groups.items())
            fact = f"the ranks trace different graphs of {entry}: operation {number} is {told}"
            return RanksDisagree(fact, list(groups.values()))
    return RanksDisagree(f"the ranks trace the same operations of {entry} but return different values", [])
