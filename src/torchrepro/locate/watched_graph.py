"""Watch values inside the failing graph: the first wrong one, the first NaN or Inf, how the error grows.

The values themselves never reach this process: a child compares them and returns numbers. Each observation is
one compile, and all of them are kept. All values are watched at once if all three sides of each fit into
memory. Else, or if so many outputs make the failure vanish, some are watched: then some of those that the
first wrong one depends on and no right one does. With one value at a time that is a bisection of the graph,
as `git bisect` does with commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
from torch.fx import Node

from torchrepro.cut.record_values import Recording
from torchrepro.cut.subgraph import without_symbols
from torchrepro.cut.watched_values import Ancestry, values_in, watched
from torchrepro.engine.processes.child import Outcome, run_without_reference_if_it_dies
from torchrepro.engine.processes.limits import memory_share
from torchrepro.graph_text.source_lines import module_of, source_of
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.torch_api.names import C_HOMES
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_WATCH = "torchrepro.locate.op_jobs:watch"
_SIDES = 10
"""Bytes in memory for each byte of a watched value: eager, compiled, a truth of up to four times the size,
and copies while they are compared."""
OF_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)


@dataclass(frozen=True, slots=True)
class Odd:
    """How many elements of a value are not finite."""

    nan: int = 0
    infinite: int = 0
    strange: int = 0
    """How many of both have a finite float64 truth: an overflow, or an error."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The value of a node on both sides, against float64."""

    node: str
    wrong: bool = False
    """The compiled value is further from the truth than the judge allows."""
    at_fault: bool | None = None
    """Wrong on its operands: computed again from the operands of the compiled graph, it is right.
    None: not tested, or an operand is not available."""
    eager: float | None = None
    """The largest error, relative to the largest magnitude of the truth; None if there is no truth."""
    compiled: float | None = None
    eager_odd: Odd = field(default_factory=Odd)
    compiled_odd: Odd | None = None
    """None: the compiled side did not get that far."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One run of each side with some values watched."""

    verdict: Verdict
    """Without its comparison, which is about thousands of values here."""
    seen: tuple[Seen, ...] = ()
    wrong_elsewhere: tuple[str, ...] = ()
    """Paths of what is wrong among the graph's own results: `out[0]`, `inputs[2]`."""
    nan_inputs: tuple[str, ...] = ()
    """Inputs of the graph that hold a NaN, by the names of their nodes."""

    @property
    def shows(self) -> bool:
        """Whether anything is wrong in it."""
        return bool(self.wrong_elsewhere) or any(seen.wrong for seen in self.seen)


def op_of(node: Node) -> str:
    """Return the op's name: `aten.erf.default`, `torch.nn.functional.gelu`, `.add_`; a module's path."""
    target: Any = node.target
    if node.op == "call_method":
        return f".{target}"
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return str(target)
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", "") or ""
    # Python's own operators are in `_operator`; torch's in C++ have no importable module.
    name = name.removeprefix(f"{C_HOMES[module].rpartition('.')[2]}_") if module in C_HOMES else name
    module = {"_operator": "operator", **C_HOMES}.get(module, module)
    return f"{module}.{name}" if module else f"torch.{name}"


def whereabouts(node: Node) -> dict[str, Any]:
    """Return the fields that `GuiltyOp` and `Growth` share."""
    module, source = module_of(node), source_of(node) or ""
    return {"node": node.name, "op": op_of(node), "module": module, "source": source}


@dataclass(eq=False)
class Watching:
    """What is known of the values inside the repro of an inquiry."""

    inquiry: Inquiry
    recording: Recording
    capacity: int
    """Bytes of values that are watched at a time."""
    seen: dict[str, Seen] = field(default_factory=dict)
    nan_inputs: frozenset[str] = frozenset()
    """Inputs of the graph that hold a NaN."""

    @classmethod
    def of(cls, inquiry: Inquiry) -> Watching | None:
        """Return the values recorded in an eager run; None, with a note, if there are none."""
        if inquiry.repro.place is Place.BEFORE_CAPTURE:
            inquiry.notes.append("no op is named: this is a whole call, not a graph of ops")
            return None
        recording = inquiry.oracle.record(inquiry.repro)
        if recording is None:
            if inquiry.verdict.kind is not Kind.MISSING_ERROR:
                inquiry.notes.append("no op is named: an eager run that keeps the values inside does not end")
            return None
        return cls(inquiry, recording, memory_share(inquiry.oracle.workers) // _SIDES)

    @property
    def repro(self) -> Repro:
        return self.inquiry.repro

    @cached_property
    def static(self) -> Repro:
        """The repro that pieces are cut from: without symbols, which no piece has, or earlier calls."""
        return replace(without_symbols(self.repro), earlier=())

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.repro.graph.graph.nodes}

    @cached_property
    def values(self) -> list[str]:
        """The nodes whose values can be watched, in the order of the graph."""
        return values_in(self.repro.graph.graph, self.recording)

    @cached_property
    def ancestry(self) -> Ancestry:
        return Ancestry(self.repro.graph.graph)

    def at_a_time(self, names: Sequence[str]) -> int:
        """Return how many of these values can be watched at once, if they are spread evenly."""
        total = sum(self.recording.sizes[name] for name in names)
        if total <= self.capacity:
            return len(names)
        return max(1, len(names) * self.capacity // total)

    def watch(self, names: Sequence[str]) -> Sighting | None:
        """Watch some values: one compile. Return None if the graph then fails in another way."""
        self.inquiry.on_step(f"watching {len(names)} of {len(self.values)} values")
        sighting = self.look(watched(self.repro, names, self.recording), names)
        if sighting is None or sighting.verdict.kind not in (Kind.PASS, *OF_VALUES):
            return None
        self.nan_inputs |= frozenset(sighting.nan_inputs)
        for seen in sighting.seen:
            known = self.seen.get(seen.node)
            # `at_fault` is known only if the operands are watched as well.
            if known is None or not known.at_fault or seen.at_fault is not None:
                self.seen[seen.node] = seen
        return sighting

    def look(self, repro: Repro, names: Sequence[str]) -> Sighting | None:
        """Run all sides of a repro whose last outputs are the named values, again while nothing is wrong."""
        for _ in range(self.inquiry.repeats):
            sighting = self._look(repro, names)
            if sighting is None or sighting.shows or sighting.verdict.fails:
                break
        return sighting

    def _look(self, repro: Repro, names: Sequence[str]) -> Sighting | None:
        def run(**options: bool) -> Outcome:
            return self.inquiry.ran(_WATCH, repro, names=list(names), **options)

        outcome = run_without_reference_if_it_dies(run)
        if outcome.error is not None and outcome.error["kind"] == "harness":
            self.inquiry.notes.append(f"values could not be watched: {outcome.error['fact']}")
        return None if outcome.result is None else msgspec.convert(outcome.result, Sighting)
