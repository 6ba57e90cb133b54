"""GuardFunction: decides whether a captured region may be used again, and gives the reason of a miss.

In its text each source is read once, cheap checks are first, and objects come before their parts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from torchrepro.frontend.codegen.writer import Kept, Writer, define
from torchrepro.frontend.guards.kinds import AmbientIs, Guard, TensorLike
from torchrepro.frontend.source import FrameState, Source
from torchrepro.torch_api.facts import QuickTensors
from torchrepro.torch_api.modes import DisableTorchFunction

_INDENT = " " * 4
_HEAD = """\
def check(state):
    L, C, S = state.locals, state.cells, state.stack
    try:
"""
_TAIL = """
    except Exception as {error}:
        return {owners}[{error}.__traceback__.tb_lineno], (), {error}
"""


@dataclass(frozen=True, eq=False)
class GuardFunction:
    guards: tuple[Guard, ...]
    """In the order in which they are checked."""
    text: str = field(repr=False)
    check: Callable[[FrameState], tuple[int, tuple[Any, ...], Exception | None] | None] = field(repr=False)
    """The generated function: None if all guards hold; else the index of the first that fails, what is at its
    sources, and the error that was met there. Never raises an `Exception`."""

    @classmethod
    def of(cls, guards: Iterable[Guard], kept: Kept) -> GuardFunction:
        ordered = _in_order(guards)
        text, namespace = _write_check(ordered, kept)
        return cls(tuple(ordered), text, define("check", text, namespace, "guards"))

    def holds(self, state: FrameState) -> bool:
        return self.check(state) is None

    def miss(self, state: FrameState) -> str | None:
        """Return the first guard that fails, as a sentence; None if all hold."""
        found = self.check(state)
        return None if found is None else self.guards[found[0]].miss_sentence(*found[1:])

    def failing(self, state: FrameState) -> Guard | None:
        """Return the first guard that fails."""
        found = self.check(state)
        return None if found is None else self.guards[found[0]]


def _in_order(guards: Iterable[Guard]) -> list[Guard]:
    """Return the guards by cost, those of an object before those of what is read from it."""
    guards = list(guards)
    tensors = {guard.source for guard in guards if isinstance(guard, TensorLike)}
    by_cost = sorted(guards, key=lambda guard: guard.cost)
    costs = {guard.source: guard.cost for guard in by_cost if not guard.others}  # of the costliest on it

    def rank(guard: Guard) -> tuple[bool, int, int, int]:
        """Return the sort key: what is read from tensors is last, so that the others are checked at once."""
        above = [base for source in guard.reads for base in _bases(source)]
        # Not by `max`, which the user may have replaced.
        cost = sorted([guard.cost, *(costs.get(base, 0) for base in above)])[-1]
        return not tensors.isdisjoint(above), cost, len(above), guard.cost

    return sorted(guards, key=rank)


def _write_check(ordered: Sequence[Guard], kept: Kept) -> tuple[str, dict[str, Any]]:
    writer = Writer(kept)
    for name in ("state", "check"):
        writer.variable(name)
    owners = [0] * (1 + _HEAD.count("\n"))
    """Which guard each line belongs to."""

    def write(index: int, lines: Iterable[str]) -> None:
        writer.lines.extend(lines)
        owners.extend([index] * (1 + len(writer.lines) + _HEAD.count("\n") - len(owners)))

    def conditions(index: int) -> list[str]:
        guard = ordered[index]
        names = [writer.read(source) for source in guard.reads]
        values = "".join(f"{name}, " for name in names)
        first, *others = guard.conditions(names, writer)
        *most, last = [f"if {first}", *(f"{_INDENT}or {each}" for each in others)]
        return [*(f"{line} \\" for line in most), f"{last}:", f"{_INDENT}return {index}, ({values}), None"]

    # The quick check depends on the thread's state, and is right only where that has been checked.
    quick = any(isinstance(guard, AmbientIs) for guard in ordered)
    careful = f"with {writer.held(DisableTorchFunction, 'no_torch_function')}():"
    for at_once, group in groupby(
        range(len(ordered)), lambda index: quick and quick_can_check(ordered[index])
    ):
        indices = list(group)
        if not at_once:
            for index in indices:
                lines = conditions(index)
                of_tensor = isinstance(ordered[index], TensorLike)
                write(index, [careful, *_indented(lines)] if of_tensor else lines)
            continue
        # Where the quick check does not return True, the conditions decide.
        for index in indices:
            writer.read(ordered[index].source)
            write(index, ())
        names = ", ".join(writer.read(ordered[index].source) for index in indices)
        tensors = writer.held(QuickTensors(), "quick")
        write(indices[0], [*_wrapped(f"if not {tensors}.check({names}):"), _INDENT + careful])
        for index in indices:
            write(index, _indented(conditions(index), 2))
        write(indices[-1], _indented(_wrapped(f"{tensors}.learn({names})")))
    lines = _indented([*writer.lines, "return None"], 2)
    tail = _TAIL.format(error=writer.variable("error"), owners=writer.held(owners, "guard_of_line"))
    return _HEAD + "\n".join(lines) + tail, writer.namespace


def quick_can_check(guard: Guard) -> bool:
    """Return whether the quick check is safe: without strides it aborts, of subclasses it runs Python code.

    It reads dispatch keys as modified by the thread's state: what it learned in inference mode may match
    tensors made there, outside of it. So it may be called only where `AmbientIs` holds.
    """
    if not isinstance(guard, TensorLike):
        return False
    return guard.facts.layout is torch.strided and guard.facts.kind in (torch.Tensor, torch.nn.Parameter)


def _wrapped(call: str) -> list[str]:
    """Wrap the line of a call with many names."""
    return textwrap.wrap(
        call, 98, subsequent_indent=_INDENT * 2, break_long_words=False, break_on_hyphens=False
    )


def _indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    return [_INDENT * levels + line for line in lines]


def _bases(source: Source) -> Iterator[Source]:
    while source.base is not None:
        source = source.base
        yield source
