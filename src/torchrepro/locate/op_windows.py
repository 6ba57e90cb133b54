"""The guilty op as a window: alone, on the values that eager gave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchrepro.cut.failing_windows import alone, beside, failing_one, wrong_ones
from torchrepro.cut.hints import suspects
from torchrepro.cut.units import Unit
from torchrepro.cut.windows import Window, by_ambient, windows_of
from torchrepro.locate.observations import Seen
from torchrepro.locate.watched_graph import OF_VALUES, Watching
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict

_SUSPECTS = 2
_WINDOW_GROUPS = 2
"""Groups of ops that run in different states (autocast, no gradients) and cannot stand in one graph."""


class OpWindows:
    """The ops of a graph, each as a graph of its own."""

    def __init__(self, watching: Watching, left: Callable[[], int]) -> None:
        self._watching = watching
        self._left = left
        self._inquiry = watching.inquiry
        self._windows = windows_of(watching.static, watching.recording)
        self._place = {name: place for place, name in enumerate(watching.nodes)}

    def fails_alone(self, name: str) -> tuple[bool, Seen | None]:
        """Whether the op that computes a node fails by itself, and what was seen of its result."""
        for window in self._windows:
            for unit in window.instances:
                if name in unit.nodes:
                    return self._fails(unit, window, name)
        return False, None

    def named(self) -> tuple[list[str], str | None]:
        """The ops that the evidence of the failure names, and the first of them that fails alone."""
        static, recording = self._watching.static, self._watching.recording
        named = suspects(self._windows, self._inquiry.verdict, static, recording)
        names = [window.name for window in named[:_SUSPECTS]]
        return names, next((name for name in names if self.fails_alone(name)[0]), None)

    def wrong(self) -> list[str]:
        """The ops whose results are wrong alone, in the order of the graph: one compile for each state."""
        self._inquiry.on_step("judging every op alone")
        found: list[str] = []
        for group in by_ambient(self._windows)[:_WINDOW_GROUPS]:
            if self._left() <= 0:
                break
            pairs = wrong_ones(self._watching.static, self._watching.recording, group, self._rounds)
            found += [unit.name for unit, _ in pairs]
        return sorted(found, key=self._place.__getitem__)

    def failing(self) -> str | None:
        """The op that fails alone, by bisection; first it is asked whether any does."""
        self._inquiry.on_step("looking for an op that fails alone")
        static, recording = self._watching.static, self._watching.recording
        for group in by_ambient(self._windows)[:_WINDOW_GROUPS]:
            if self._left() <= 0 or self._first_failing([beside(static, recording, group)]) is None:
                continue
            parts = self._inquiry.oracle.workers + 1
            for unit, _ in failing_one(static, recording, group, self._first_failing, parts=parts):
                if self.fails_alone(unit.name)[0]:
                    return unit.name
        return None

    def _fails(self, unit: Unit, window: Window, name: str) -> tuple[bool, Seen | None]:
        single = alone(self._watching.static, self._watching.recording, unit, window)
        if single is None:
            return False, None
        gradients_alone = self._inquiry.failure.places == {"grad"}
        if self._inquiry.verdict.kind not in OF_VALUES or gradients_alone:
            return self._inquiry.fails(single), None
        outputs: Any = single.graph.graph.output_node().args[0]
        names = [node.name for node in outputs]
        sighting = self._watching.look(replace(single, backward=False), names)
        if sighting is None:
            return False, None
        seen = {seen.node: seen for seen in sighting.seen}
        return sighting.verdict.kind in OF_VALUES, seen.get(name)

    def _first_failing(self, candidates: Sequence[Repro | None]) -> int | None:
        built = [(place, candidate) for place, candidate in enumerate(candidates) if candidate is not None]
        verdicts = self._inquiry.verdicts([candidate for _, candidate in built])
        shown = (self._inquiry.failure.shown_by(verdict) for verdict in verdicts)
        return next((place for (place, _), shows in zip(built, shown, strict=True) if shows), None)

    def _rounds(self, repro: Repro) -> Sequence[Verdict]:
        self._inquiry.compiles += 1
        return self._inquiry.oracle.rounds(repro)
