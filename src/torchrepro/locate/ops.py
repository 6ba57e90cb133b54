"""Find the culprit op: the first whose compiled value is worse than eager's while all its operands are fine.

The cheapest way first. The exception may name it. Wrong values are watched inside the compiled graph, and
the first that its op alone explains is the answer. Else each op is judged alone on the values that eager gave
it (a window). Last, the graph is cut to its shortest failing prefix, or for gradients its shortest failing
suffix: each piece keeps the op with all ops before it, as it was fused. Where a compile of the whole takes
long, the windows come first (`find_op_alone`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torchrepro.cut.failing_windows import failing_ones
from torchrepro.cut.hints import suspects
from torchrepro.cut.subgraph import piece
from torchrepro.cut.units import Unit, takes_apart, units_of
from torchrepro.cut.windows import Window, alone, by_ambient, windows_of, wrong_ones
from torchrepro.locate.context import Inquiry
from torchrepro.locate.watched_graph import OF_VALUES, Seen, Watching, whereabouts
from torchrepro.locate.wrong_values import Traced, steepest, trace
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import GuiltyOp, Way
from torchrepro.nouns.verdict import Kind
from torchrepro.torch_api.ops import HigherOrderOperator

_RAISING = "torchrepro.locate.op_jobs:raising"
_FEWEST = 8
"""Compiles that are allowed even for the smallest graph."""
_WINDOW_GROUPS = 2
"""Maximum number of groups of ops in different states (autocast, no gradients), each its own graph."""


def find_op(inquiry: Inquiry, watching: Watching | None) -> GuiltyOp | None:
    """Return the op, or None with a note that gives the reason. At most 2·log2(ops) compiles."""
    if watching is None:
        return _raising_in_eager(inquiry) if inquiry.verdict.kind is Kind.MISSING_ERROR else None
    search = _Search(watching)
    if inquiry.verdict.kind not in OF_VALUES:
        return search.by_failure()
    return search.by_gradients() if inquiry.failure.places == {"grad"} else search.by_values()


def find_op_alone(watching: Watching, likely: Iterable[str] = ()) -> GuiltyOp | None:
    """Return an op that fails by itself, or None; the graph as a whole is not compiled. `likely`: nodes."""
    return _Search(watching).alone(likely)


def op_alone(watching: Watching, name: str, windows: Sequence[Window] | None = None) -> Repro | None:
    """Return the op that computes a node, on its recorded operands; None if they are not all known."""
    cut = watching.static, watching.recording
    places = ((window, unit) for window in windows or windows_of(*cut) for unit in window.instances)
    return next((alone(*cut, unit, window) for window, unit in places if name in unit.nodes), None)


class _Search:
    """One search for one op, with a limit of compiles."""

    def __init__(self, watching: Watching) -> None:
        self._inquiry = inquiry = watching.inquiry
        self._watching = watching
        self._cut = watching.static, watching.recording
        self._windows = windows_of(*self._cut)
        compiles = max(_FEWEST, int(2 * math.log2(max(2, inquiry.repro.ops))))
        self._limit = inquiry.asked + compiles * inquiry.repeats
        self._gradients_alone = inquiry.failure.places == {"grad"}

    def left(self) -> int:
        return self._limit - self._inquiry.asked

    def by_failure(self) -> GuiltyOp | None:
        """Return the culprit of an exception, a crash or a hang."""
        suspected = suspects(self._windows, self._inquiry.verdict, *self._cut)
        named = [window.name for window in suspected]
        found = self.alone(named)
        if found is not None:
            return found
        last = self.edge(lambda units, count: units[:count])
        if last is not None:
            self._say("no op fails alone: the one named is where the failure comes, with the ops before it")
            return self._answer(last, Way.PIECE)
        if named:
            self._say("the op is named by what was raised, and does not fail alone")
            return self._answer(named[0], Way.ERROR)
        self._say("no op is named: none fails alone, and the graph fails only as a whole")
        return None

    def alone(self, likely: Iterable[str]) -> GuiltyOp | None:
        """Return an op that fails by itself: a likely one, or the same op in an earlier layer, else any."""
        firsts = {unit.name: window.name for window in self._windows for unit in window.instances}
        tried = dict.fromkeys(each for name in likely if name in firsts for each in (firsts[name], name))
        for name in tried:
            fails, seen = self.fails_alone(name)
            if fails:
                return self._answer(name, Way.WINDOW, seen)
        if self._inquiry.verdict.kind in OF_VALUES:
            return self._wrong_alone()
        failing = self.failing()
        return None if failing is None else self._answer(failing, Way.WINDOW)

    def by_values(self) -> GuiltyOp | None:
        """Return the culprit of wrong results, or of results that are not finite."""
        traced = trace(self._watching, at_once=len(self._watching.values), left=self.left)
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
            again = trace(self._watching, at_once=1, left=self.left)
            if again.node is not None:
                return self._seen_in_graph(again)
        last = self.edge(lambda units, count: units[:count])
        if last is None:
            self._say("no op is named: none is wrong alone, and none shows in the compiled graph")
            return None
        self._say("no op is wrong alone: the one named is where the failure comes, with the ops before it")
        return self._answer(last, Way.PIECE)

    def by_gradients(self) -> GuiltyOp | None:
        """Return the op whose backward is wrong, where only gradients are wrong."""
        alone = self._wrong_alone()
        if alone is None:
            first = self.edge(lambda units, count: units[len(units) - count :])
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
        tried = self.left() > 0
        fails = tried and self.fails_alone(traced.node)[0]
        if not fails:
            self._say(
                f"the op is wrong in this graph and not alone: it needs {self._missing_alone()}"
                if tried
                else "the op is wrong in this graph: no compile is left to try it alone"
            )
        return self._answer(traced.node, Way.WINDOW if fails else Way.OUTPUTS)

    def _missing_alone(self) -> str:
        repro = self._inquiry.repro
        left_out = ["earlier calls"] * bool(repro.earlier) + ["sizes that vary"] * bool(repro.symbols)
        return " or ".join(["others next to it", *left_out])

    def _wrong_alone(self) -> GuiltyOp | None:
        for name in self.wrong():
            fails, seen = self.fails_alone(name) if self.left() > 0 else (False, None)
            if fails:
                return self._answer(name, Way.WINDOW, seen)
        return None

    def _answer(self, name: str, way: Way, seen: Seen | None = None) -> GuiltyOp:
        # In a piece that fails, the value of this op may be right.
        seen = None if way is Way.PIECE else seen or self._watching.seen.get(name)
        node = self._watching.nodes[name]
        while takes_apart(node, self._watching.recording.several):
            node = node.all_input_nodes[0]
        if isinstance(node.target, HigherOrderOperator):
            self._say(f"{node.name} runs graphs of its own, and what is in them was not looked at")
        errors = (None, None) if seen is None else (seen.eager, seen.compiled)
        return GuiltyOp(**whereabouts(node), way=way, eager_error=errors[0], compiled_error=errors[1])

    def _say(self, note: str) -> None:
        self._inquiry.notes.append(note)

    # Each op as its own graph.

    def fails_alone(self, name: str) -> tuple[bool, Seen | None]:
        """Return whether the op that computes a node fails alone, and its result's `Seen`."""
        single = op_alone(self._watching, name, self._windows)
        if single is None:
            return False, None
        if self._inquiry.verdict.kind not in OF_VALUES or self._gradients_alone:
            return self._inquiry.fails(single), None
        outputs: Any = single.graph.graph.output_node().args[0]
        names = [node.name for node in outputs]
        sighting = self._watching.look(replace(single, backward=False), names)
        if sighting is None:
            return False, None
        seen = {seen.node: seen for seen in sighting.seen}
        return sighting.verdict.kind in OF_VALUES, seen.get(name)

    def wrong(self) -> list[str]:
        """Return ops whose results are wrong alone, in graph order: one compile for each state.

        On a device, where a compile is split, those of the first part that has some.
        """
        self._inquiry.on_step("judging every op alone")
        found: list[str] = []
        for group in by_ambient(self._windows)[:_WINDOW_GROUPS]:
            if self.left() > 0:
                parts = self._inquiry.parts_of(self._watching.static)
                answers = wrong_ones(*self._cut, group, self._inquiry.rounds_of_each, parts=parts)
                found += [unit.name for unit, _ in next(filter(None, answers), ())]
        return sorted(found, key=list(self._watching.nodes).index)

    def failing(self) -> str | None:
        """Return the op that fails alone."""
        self._inquiry.on_step("looking for an op that fails alone")

        def first_failing(candidates: Sequence[Repro | None]) -> int | None:
            found = self._inquiry.first_failing(candidates, in_order=False)
            return None if found is None else found.index

        for group in by_ambient(self._windows)[:_WINDOW_GROUPS]:
            if self.left() <= 0:
                break
            parts = self._inquiry.oracle.workers + 1
            announced = self._inquiry.failure_announced
            for unit, _ in failing_ones(*self._cut, group, first_failing, announced, parts=parts):
                if self.fails_alone(unit.name)[0]:
                    return unit.name
        return None

    def edge(self, part: Callable[[list[Unit], int], list[Unit]]) -> str | None:
        """Return the op that completes the shortest failing piece; None if too few compiles are left.

        `part(units, count)` is a prefix of the graph, or for gradients a suffix.
        """
        static, recording = self._cut
        all_units = units_of(static.graph.graph, recording.several)
        units = [unit for unit in all_units if not unit.is_state]
        # Regions of autocast are kept in every piece: they are not ops, and the failure may need them.
        regions = [name for unit in all_units if unit.is_state for name in unit.nodes]

        def fails(count: int) -> bool:
            if self.left() <= 0:
                raise _NoCompilesLeft
            self._inquiry.on_step(f"cutting the graph to {count} of {len(units)} ops")
            kept = [name for unit in part(units, count) for name in unit.nodes]
            cut = piece(static, recording, [*regions, *kept])
            return cut is not None and self._inquiry.fails(cut)

        try:
            # Judge the whole graph again, because without symbols and earlier calls it may pass.
            if not units or not fails(len(units)):
                return None
            count = bisect_left(range(len(units)), True, lo=1, key=fails)
        except _NoCompilesLeft:
            return None
        before = part(units, count - 1)
        return next(unit.name for unit in part(units, count) if unit not in before)


class _NoCompilesLeft(Exception):
    pass


def _raising_in_eager(inquiry: Inquiry) -> GuiltyOp | None:
    """Return the op that raises the missing error in eager."""
    if inquiry.repro.place is Place.BEFORE_CAPTURE:
        return None
    name = inquiry.ran(_RAISING, inquiry.repro, compiles=0).result
    found = (node for node in inquiry.repro.graph.graph.nodes if node.name == name)
    return next((GuiltyOp(**whereabouts(node), way=Way.ERROR) for node in found), None)
