"""GuardFunction: decides whether a captured region may be used again, and can say why not.

In its text each source is read once, cheap checks are first, and objects come before their parts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from torchrepro.frontend.codegen.writer import Kept, Writer, define
from torchrepro.frontend.guards.guard import Guard, OfSource
from torchrepro.frontend.guards.kinds import AmbientIs, TensorLike
from torchrepro.frontend.guards.tensor_facts import QuickTensors, no_torch_function, quick_can_check
from torchrepro.frontend.source import FrameState, Source

_WIDTH = 110
_INDENT = " " * 4
_Search = Callable[[FrameState], tuple[int, tuple[Any, ...], Exception | None] | None]


@dataclass(slots=True)
class Guards:
    """What a trace relied on, in the order in which it was noticed."""

    kept: Kept
    """The objects behind `Held` sources."""
    _guards: dict[Guard, None] = field(default_factory=dict)

    def add(self, guard: Guard) -> None:
        self._guards.setdefault(guard)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards)

    def __len__(self) -> int:
        return len(self._guards)


def compile_guards(guards: Guards) -> GuardFunction:
    return GuardFunction.of(guards, guards.kept)


@dataclass(frozen=True, eq=False)
class GuardFunction:
    guards: tuple[Guard, ...]
    """In the order in which they are checked."""
    kept: Kept = field(repr=False)
    text: str = field(repr=False)
    holds: Callable[[FrameState], bool] = field(repr=False)
    """The generated function itself: one Python call less. Never raises an `Exception`."""

    @classmethod
    def of(cls, guards: Iterable[Guard], kept: Kept) -> GuardFunction:
        ordered = _in_order(guards)
        text, namespace = _write_check(ordered, kept)
        return cls(tuple(ordered), kept, text, define("holds", text, namespace, "guards"))

    def miss(self, state: FrameState) -> str | None:
        """Return the first guard that fails, as a sentence; None if all hold."""
        result = self._search(state)
        if result is None:
            return None
        index, values, error = result
        return self.guards[index].miss_sentence(values, error)

    def failing(self, state: FrameState) -> Guard | None:
        """Return the first guard that fails."""
        result = self._search(state)
        return None if result is None else self.guards[result[0]]

    def sentences(self) -> list[str]:
        """One line per guard, for people."""
        return [guard.sentence() for guard in self.guards]

    @cached_property
    def _search(self) -> _Search:
        search: _Search = define("search", *_write_search(self.guards, self.kept), "guards")
        return search


def _in_order(guards: Iterable[Guard]) -> list[Guard]:
    """By cost; but what is known of an object goes before everything that is read from it."""
    guards = list(guards)
    tensors = {guard.source for guard in guards if isinstance(guard, TensorLike)}

    def rank(guard: Guard) -> tuple[bool, int]:
        """Rank what is read from tensors last, so that all other tensors are checked at once."""
        return any(base in tensors for source in guard.reads for base in _bases(source)), guard.cost

    guards.sort(key=rank)
    on_source: dict[Source, list[Guard]] = {}
    for guard in guards:
        if isinstance(guard, OfSource):
            on_source.setdefault(guard.source, []).append(guard)
    settled: set[Source] = set()
    placed: dict[int, Guard] = {}

    def settle(source: Source | None) -> None:
        if source is not None and source not in settled:
            settled.add(source)
            settle(source.base)
            for guard in on_source.get(source, ()):
                place(guard)

    def place(guard: Guard) -> None:
        for source in guard.reads:
            settle(source.base)
        placed.setdefault(id(guard), guard)

    for guard in guards:
        place(guard)
    return list(placed.values())


def _write_check(ordered: Sequence[Guard], kept: Kept) -> tuple[str, dict[str, Any]]:
    """`holds(state)`: whether all guards hold. Whatever raises on the way is a miss."""
    writer = _writer(kept)
    # The quick check depends on the thread's state, and is right only where that has been checked.
    quick = any(isinstance(guard, AmbientIs) for guard in ordered)
    for at_once, group in groupby(ordered, lambda guard: quick and _is_quick(guard)):
        if at_once:
            _write_quick([guard for guard in group if isinstance(guard, TensorLike)], writer)
        else:
            for guard in group:
                names = [writer.read(source) for source in guard.reads]
                _write_guard(guard, names, "return False", writer)
    lines = [*writer.lines, "return True"]
    return _function("holds", lines, "except Exception:", "return False"), writer.namespace


def _write_search(ordered: Sequence[Guard], kept: Kept) -> tuple[str, dict[str, Any]]:
    """`search(state)`: (index of the first guard that fails, what it read, the error it met), or None."""
    writer = _writer(kept)
    at, error = writer.variable("at"), writer.variable("error")
    for index, guard in enumerate(ordered):
        writer.statement(f"{at} = {index}")
        names = [writer.read(source) for source in guard.reads]
        values = "".join(f"{name}, " for name in names)
        _write_guard(guard, names, f"return {at}, ({values}), None", writer)
    lines = [*writer.lines, "return None"]
    text = _function("search", lines, f"except Exception as {error}:", f"return {at}, (), {error}")
    return text, writer.namespace


def _is_quick(guard: Guard) -> bool:
    return isinstance(guard, TensorLike) and quick_can_check(guard.facts)


def _writer(kept: Kept) -> Writer:
    writer = Writer(kept)
    for name in ("state", "holds", "search"):
        writer.variable(name)
    return writer


def _function(name: str, body: Sequence[str], handler: str, otherwise: str) -> str:
    head = [
        f"def {name}(state):",
        f"{_INDENT}L, C, S = state.locals, state.cells, state.stack",
        f"{_INDENT}try:",
    ]
    tail = [f"{_INDENT}{handler}", f"{_INDENT * 2}{otherwise}"]
    return "\n".join([*head, *_indented(body, 2), *tail]) + "\n"


def _write_guard(guard: Guard, names: Sequence[str], then: str, writer: Writer) -> None:
    lines = _if(guard.conditions(names, writer), then)
    if isinstance(guard, TensorLike):
        lines = [f"with {writer.held(no_torch_function, 'no_torch_function')}():", *_indented(lines)]
    _write_lines(lines, writer)


def _write_quick(guards: Sequence[TensorLike], writer: Writer) -> None:
    """The quick check, and the conditions that decide where it does not say yes."""
    names = [writer.read(guard.source) for guard in guards]
    tensors = writer.held(QuickTensors(), "quick")
    decisive = [
        line
        for guard, name in zip(guards, names, strict=True)
        for line in _if(guard.conditions([name], writer), "return False")
    ]
    lines = [
        f"with {writer.held(no_torch_function, 'no_torch_function')}():",
        *_indented(decisive),
        *_call(f"{tensors}.learn", names, ""),
    ]
    _write_lines([*_call(f"if not {tensors}.check", names, ":"), *_indented(lines)], writer)


def _write_lines(lines: Iterable[str], writer: Writer) -> None:
    for line in lines:
        writer.statement(line)


def _if(any_of: Sequence[str], then: str) -> list[str]:
    line = f"if {' or '.join(any_of)}:"
    # Three levels is the deepest at which one is written.
    if len(line) + 4 * len(_INDENT) <= _WIDTH or len(any_of) == 1:
        return [line, _INDENT + then]
    first, *others = any_of
    return ["if (", *_indented([first, *(f"or {each}" for each in others)]), "):", _INDENT + then]


def _call(function: str, names: Sequence[str], after: str) -> list[str]:
    line = f"{function}({', '.join(names)}){after}"
    if len(line) + 3 * len(_INDENT) <= _WIDTH:
        return [line]
    wrapped = textwrap.wrap(", ".join(names) + ",", _WIDTH - 4 * len(_INDENT), break_long_words=False)
    return [f"{function}(", *_indented(wrapped), f"){after}"]


def _indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    return [_INDENT * levels + line for line in lines]


def _bases(source: Source) -> Iterator[Source]:
    while source.base is not None:
        source = source.base
        yield source
