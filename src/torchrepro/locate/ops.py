"""The guilty op: the first whose compiled value is worse than eager's while all that it reads is fine.

The cheapest way first. What was raised may name it. Wrong values are watched inside the compiled graph, and
the first that its op alone explains is it. Else each op is judged alone, and at last the graph is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.fx import Node

from torchrepro.cut.units import takes_apart
from torchrepro.locate.context import Inquiry
from torchrepro.locate.error_growth import steepest
from torchrepro.locate.node_origin import whereabouts
from torchrepro.locate.observations import Seen
from torchrepro.locate.op_pieces import first_of_shortest_end, last_of_shortest_beginning
from torchrepro.locate.op_windows import OpWindows
from torchrepro.locate.watched_graph import OF_VALUES, Watching
from torchrepro.locate.wrong_values import Traced, trace
from torchrepro.nouns.located import GuiltyOp, Way
from torchrepro.nouns.repro import Place
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
            self._say("the op is wrong in this graph and not alone: it needs others beside it")
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
        return _guilty(
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
    return _guilty(found[0], Way.ERROR) if found else None


def _guilty(node: Node, way: Way, **errors: float | None) -> GuiltyOp:
    here = whereabouts(node)
    return GuiltyOp(here.node, here.op, way, here.module, here.source, **errors)
