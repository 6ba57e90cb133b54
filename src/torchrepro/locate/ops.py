"""Find the culprit op: the first whose compiled value is worse than eager's while all its operands are fine.

The cheapest way first. The exception may name it. Wrong values are watched inside the compiled graph, and
the first that its op alone explains is the answer. Else each op is judged alone on the values that eager gave
it (a window). Last, the graph is cut to its shortest failing beginning, or for gradients its shortest failing
end: each piece keeps the op with all ops before it, as it was fused.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node

from torchrepro.cut.hints import suspects
from torchrepro.cut.subgraph import Unit, piece, takes_apart, units_of
from torchrepro.cut.windows import Window, alone, beside, by_ambient, failing_one, windows_of, wrong_ones
from torchrepro.locate.context import Inquiry
from torchrepro.locate.watched_graph import OF_VALUES, Seen, Watching, whereabouts
from torchrepro.locate.wrong_values import Traced, steepest, trace
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import GuiltyOp, Way
from torchrepro.nouns.verdict import Kind
from torchrepro.torch_api.ops import HigherOrderOperator

_RAISING = "torchrepro.locate.op_jobs:raising"
_FEWEST = 8
"""Compiles that even the smallest graph may cost."""


def find_op(inquiry: Inquiry, watching: Watching | None) -> GuiltyOp | None:
    """The op, or None with a note that says why there is none. At most 2·log2(ops) compiles."""
    if watching is None:
        return _raising_in_eager(inquiry) if inquiry.verdict.kind is Kind.MISSING_ERROR else None
    limit = inquiry.compiles + max(_FEWEST, int(2 * math.log2(max(2, inquiry.repro.ops))))

    def left() -> int:
        return limit - inquiry.compiles

    search = _Search(inquiry, watching, OpWindows(watching, left), left)
    if inquiry.verdict.kind not in OF_VALUES:
        return search.by_failure()
    return search.by_gradients() if inquiry.failure.places == {"grad"} else search.by_values()


class _Search:
    """One search for one op: what is asked, and how many compiles are left for it."""

    def __init__(
        self, inquiry: Inquiry, watching: Watching, windows: OpWindows, left: Callable[[], int]
    ) -> None:
        self._inquiry = inquiry
        self._watching = watching
        self._windows = windows
        self._left = left

    def by_failure(self) -> GuiltyOp | None:
        """An exception, a crash or a hang."""
        named, failing = self._windows.named()
        failing = failing or self._windows.failing()
        if failing is not None:
            return self._answer(failing, Way.WINDOW)
        last = last_of_shortest_beginning(self._watching, self._left)
        if last is not None:
            self._say("no op fails alone: the one named is where the failure comes, with the ops before it")
            return self._answer(last, Way.PIECE)
        if named:
            self._say("the op is named by what was raised, and does not fail alone")
            return self._answer(named[0], Way.ERROR)
        self._say("no op is named: none fails alone, and the graph fails only as a whole")
        return None

    def by_values(self) -> GuiltyOp | None:
        """Wrong results, or results that are not finite."""
        traced = trace(self._watching, at_once=len(self._watching.values), left=self._left)
        if traced.node is not None:
            return self._seen_in_graph(traced)
        if traced.unseen:
            self._say("the values inside cannot be watched: with them as outputs the graph fails otherwise")
        elif not traced.shows:
            self._say("with the values inside made outputs the failure vanishes: what is fused has changed")
        alone = self._wrong_alone()
        if alone is not None:
            return alone
        if traced.inherited:
            most = steepest(self._watching)
            self._say(
                "no op is wrong: each makes of its operands what it should, and the error accumulates"
                + (f", most of all at {most}" if most is not None else "")
            )
            return None
        if not traced.shows:
            again = trace(self._watching, at_once=1, left=self._left)
            if again.node is not None:
                return self._seen_in_graph(again)
        last = last_of_shortest_beginning(self._watching, self._left)
        if last is None:
            self._say("no op is named: none is wrong alone, and none shows in the compiled graph")
            return None
        self._say("no op is wrong alone: the one named is where the failure comes, with the ops before it")
        return self._answer(last, Way.PIECE)

    def by_gradients(self) -> GuiltyOp | None:
        """The results are right and gradients are wrong: backward of an op."""
        alone = self._wrong_alone()
        if alone is None:
            first = first_of_shortest_end(self._watching, self._left)
            alone = None if first is None else self._answer(first, Way.PIECE)
            if alone is not None:
                self._say(
                    "alone its backward is right: it needs the region that it stands in, or the ops after it"
                )
        self._say(
            "no op is named: the backward of none is wrong alone"
            if alone is None
            else "the op computes the right value: its backward is wrong"
        )
        return alone

    def _seen_in_graph(self, traced: Traced) -> GuiltyOp:
        assert traced.node is not None
        fails, _ = self._windows.fails_alone(traced.node) if self._left() > 0 else (False, None)
        if not fails:
            self._say("the op is wrong in this graph and not alone: it needs others next to it")
        return self._answer(traced.node, Way.WINDOW if fails else Way.OUTPUTS)

    def _wrong_alone(self) -> GuiltyOp | None:
        for name in self._windows.wrong():
            fails, seen = self._windows.fails_alone(name) if self._left() > 0 else (False, None)
            if fails:
                return self._answer(name, Way.WINDOW, seen)
        return None

    def _answer(self, name: str, way: Way, seen: Seen | None = None) -> GuiltyOp:
        # Of a piece that fails, the value of this op may well be right.
        seen = None if way is Way.PIECE else seen or self._watching.seen.get(name)
        node = self._watching.nodes[name]
        while takes_apart(node, self._watching.recording.several):
            node = node.all_input_nodes[0]
        if isinstance(node.target, HigherOrderOperator):
            self._say(f"{node.name} runs graphs of its own, and what is in them was not looked at")
        return _culprit(
            node,
            way,
            eager_error=None if seen is None else seen.eager,
            compiled_error=None if seen is None else seen.compiled,
        )

    def _say(self, note: str) -> None:
        self._inquiry.notes.append(note)


def _raising_in_eager(inquiry: Inquiry) -> GuiltyOp | None:
    """An error is missing: the op is the one that raises it in eager."""
    if inquiry.repro.place is Place.BEFORE_CAPTURE:
        return None
    name = inquiry.ran(_RAISING, inquiry.repro, compiles=0).result
    found = [node for node in inquiry.repro.graph.graph.nodes if node.name == name]
    return _culprit(found[0], Way.ERROR) if found else None


def _culprit(node: Node, way: Way, **errors: float | None) -> GuiltyOp:
    here = whereabouts(node)
    return GuiltyOp(here.node, here.op, way, here.module, here.source, **errors)


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
            pairs = wrong_ones(
                self._watching.static, self._watching.recording, group, self._inquiry.queries.rounds
            )
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
        found = self._inquiry.queries.first_failing(candidates)
        return None if found is None else found.index


class _NoCompilesLeft(Exception):
    pass


def last_of_shortest_beginning(watching: Watching, left: Callable[[], int]) -> str | None:
    """The op with which the failure comes; None where it is not found in the compiles that are left."""
    return _edge(watching, left, lambda units, count: units[:count])


def first_of_shortest_end(watching: Watching, left: Callable[[], int]) -> str | None:
    """The op whose backward brings the failure."""
    return _edge(watching, left, lambda units, count: units[len(units) - count :])


def _edge(
    watching: Watching, left: Callable[[], int], part: Callable[[list[Unit], int], list[Unit]]
) -> str | None:
    inquiry, static, recording = watching.inquiry, watching.static, watching.recording
    all_units = units_of(static.graph.graph, recording.several)
    units = [unit for unit in all_units if not unit.is_state]
    # Regions of autocast are in every piece: no op, and the failure may need them.
    regions = [name for unit in all_units if unit.is_state for name in unit.nodes]

    def fails(count: int) -> bool:
        if left() <= 0:
            raise _NoCompilesLeft
        inquiry.on_step(f"cutting the graph to {count} of {len(units)} ops")
        kept = [name for unit in part(units, count) for name in unit.nodes]
        cut = piece(static, recording, [*regions, *kept])
        return cut is not None and inquiry.fails(cut)

    try:
        # The whole graph once more: cut, it has no symbols and no earlier calls.
        if not units or not fails(len(units)):
            return None
        count = bisect_left(range(len(units)), True, lo=1, key=fails)
    except _NoCompilesLeft:
        return None
    before = part(units, count - 1)
    return next(unit.name for unit in part(units, count) if unit not in before)
