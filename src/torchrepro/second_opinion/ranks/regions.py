"""Regions among ranks: a region as a proposal, and the breaks of other ranks in its speculation log."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

from torch.fx import GraphModule, Node

from torchrepro.frontend.bytecode.reading import program_of
from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.frontend.interpreter.frame import where_of
from torchrepro.frontend.trace.speculation import Failure, SpeculationLog, Stop
from torchrepro.ranks.rounds import RanksMissing
from torchrepro.second_opinion.ranks.collective import (
    run_compiler_collective,
    should_recompile,
    tell_failure,
)
from torchrepro.second_opinion.ranks.proposal import BreakPoint, Proposal, RanksDisagree

_AGREED = "torchrepro_agreed"
"""Where a graph keeps the digest that the ranks agreed on: compilers may change its nodes."""

# What may differ between ranks that do the same: the number of the device, and addresses.
_OWN = re.compile(r"(?<=cuda:)\d+|(?<=xpu:)\d+|0x[0-9a-f]+|(?<=', index=)\d+")


class AgreeingRanks:
    """The ranks of a job that compile only what all of them have captured (`RankHooks`)."""

    def agree_on(
        self,
        log: SpeculationLog,
        function: FunctionType,
        index: int,
        graph: GraphModule,
        *,
        finish: bool = False,
    ) -> bool:
        """Whether all ranks compile this region's graph now.

        If not, the log has the breaks of all ranks, and the region is to be traced again. `finish` says that
        Python runs the function to its end after the region.
        """
        name = function.__qualname__
        ops = (*_lines(graph), _end(log, finish))
        digest = hashlib.sha256("\n".join(ops).encode()).hexdigest()
        breaks = frozenset(BreakPoint(name, stop.index, stop.visit) for stop in log.failures)
        agreement = run_compiler_collective(Proposal(entry_of(function, index), breaks, ops, digest))
        if agreement.restart:
            for point in agreement.breaks:
                stop = Stop(point.index, point.visit)
                own = log.failures.get(stop) or _elsewhere(function, point.index)
                # What Python calls there is not traced: on another rank it may be another function.
                log.failures[stop] = replace(own, inside=False)
            return False
        graph.meta[_AGREED] = digest
        return True

    def some_rank_misses(self, function: FunctionType, index: int, found: GraphModule | None) -> bool:
        """Whether the ranks have to trace at this call: some have found no region, or not the same one.

        `found` is the graph of the region whose guards hold on this rank.
        """
        agreed = "" if found is None else str(found.meta.get(_AGREED, ""))
        return should_recompile(found is None, entry=entry_of(function, index), digest=agreed)

    @contextmanager
    def failures_told(self, function: FunctionType, index: int) -> Iterator[None]:
        """What is raised inside is told to the ranks that wait for this one, but for what all ranks raise."""
        try:
            yield
        except (RanksDisagree, RanksMissing):
            raise
        except Exception as error:
            tell_failure(entry_of(function, index), error)
            raise


def entry_of(function: FunctionType, index: int) -> str:
    """A place that is traced from, in words that are the same on all ranks."""
    where = where_of(program_of(function.__code__), index)
    return f"{where.function} ({Path(where.file).name}:{where.line}, instruction {index})"


def _elsewhere(function: FunctionType, index: int) -> Failure:
    reason = BreakReason(BreakKind.OTHER_RANK, "another rank of the job breaks here")
    return Failure(reason, where_of(program_of(function.__code__), index))


def _end(log: SpeculationLog, finish: bool) -> str:
    """What comes after the graph: part of what has to be the same."""
    if not log.path or log.current not in log.failures:
        return "the function returns"
    return f"Python runs {'the rest from ' if finish else ''}instruction {log.current.index}"


def _lines(graph: GraphModule) -> Iterator[str]:
    for node in graph.graph.nodes:
        arguments = [_OWN.sub("", str(argument)) for argument in node.args]
        arguments += [f"{name}={_OWN.sub('', str(value))}" for name, value in node.kwargs.items()]
        yield f"{node.name} = {_target(node)}({', '.join(arguments)})"


def _target(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, str):
        return f"{node.op} {target}"
    return _OWN.sub("", getattr(target, "__name__", str(target)))
