"""Trace in lock step on all ranks of a job: they agree on each graph before any rank compiles it.

Ranks take the union of their breaks, trace again, and compile only what all have. Each step is a round
(`ranks/rendezvous.py`) in which every rank sends where it is and what it has. All receive the same messages,
so all make the same decision without a further exchange: continue, restart, or raise.

It is opt-in (`trace(..., ranks="agree")`): a rank may call a captured function alone (rank 0 evaluates), and
every entry into captured code costs a round through the job's store, in addition to the wait for the slowest
rank.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
from torch.fx import GraphModule

from torchrepro.catch.autoload import PREFIX
from torchrepro.catch.settings import WatchSettings
from torchrepro.frontend.bytecode.program import program_of
from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.frontend.interpreter.frame import where_of
from torchrepro.frontend.trace.tracer import Failure, SpeculationLog, Stop
from torchrepro.nouns.errors import TorchReproError
from torchrepro.ranks.rendezvous import COURTESY_SECONDS, Absent, PerGroup, Rendezvous, join, name_ranks

_END = "(the end)"
_ELSEWHERE = BreakReason(BreakKind.OTHER_RANK, "another rank of the job breaks here")
_AGREED = "torchrepro_agreed"
"""Key in a graph's metadata of the digest that the ranks agreed on: compilers may change its nodes."""

# What may differ between ranks that do the same: the number of the device, and addresses.
_OWN = re.compile(r"(?<=cuda:)\d+|(?<=xpu:)\d+|0x[0-9a-f]+|(?<=', index=)\d+")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A graph that a rank would compile. Equal on all ranks that do the same."""

    entry: str
    """What is traced, and from where: qualified name, file without its directory, line, index."""
    breaks: frozenset[Stop]
    """All known breaks of this entry: found by the rank itself, or adopted from others."""
    ops: tuple[str, ...]
    """The graph, a line for each node, without what differs between ranks (addresses, numbers of devices)."""
    digest: str
    """Digest of the ops and of the structure of the outputs."""


class RanksDisagree(TorchReproError):
    """The ranks of a job do not trace the same. Raised on all of them, at the same step."""

    def __init__(self, fact: str, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(fact, next_step='let all ranks take the same path, or trace without ranks="agree"')
        self.groups = tuple(tuple(group) for group in groups)
        """The ranks that agree with one another, group by group."""


class RanksMissing(TorchReproError):
    """A rank has died, or has timed out. The other ranks do not wait for it again."""

    def __init__(self, fact: str, missing: Sequence[int]) -> None:
        super().__init__(
            fact, next_step="see what that rank does instead, or raise TORCHREPRO_RANK_TIMEOUT (seconds)"
        )
        self.missing = tuple(missing)


def _groups_told(values: Mapping[int, str], quote: str = "") -> tuple[str, list[list[int]]]:
    """Return which ranks have equal values, as text and as groups."""
    groups: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    told = (f"{quote}{value}{quote} on {name_ranks(ranks)}" for value, ranks in groups.items())
    return "; ".join(told), list(groups.values())


def _different_graphs(entry: str, ops: Mapping[int, Sequence[str]]) -> RanksDisagree:
    """Return the error for graphs that differ at the same breaks: it names the first such operation."""
    for number, row in enumerate(zip_longest(*ops.values(), fillvalue=_END), start=1):
        told, groups = _groups_told(dict(zip(ops, row, strict=True)), "`")
        if len(groups) > 1:
            fact = f"the ranks trace different graphs of {entry}: operation {number} is {told}"
            return RanksDisagree(fact, groups)
    return RanksDisagree(f"the ranks trace the same operations of {entry} but return different values", [])


@dataclass(frozen=True, slots=True)
class _Word:
    """The message of a rank in a round."""

    step: str
    """Where it is, as a noun phrase: equal on ranks that are in step."""
    missed: bool = False
    """Whether its guards do not hold."""
    breaks: tuple[Stop, ...] = ()
    digest: str = ""
    ops: tuple[str, ...] = ()


class Collective:
    """One rank's side of the agreements of a process group."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank
        self._rendezvous = rendezvous
        self._adopted: frozenset[Stop] | None = None
        """The union of breaks that the ranks trace with, until they agree."""
        self._missing: RanksMissing | None = None

    def run_compiler_collective(self, proposal: Proposal, timeout: float) -> frozenset[Stop] | None:
        """Return None if all ranks compile now, else the breaks of all, to trace and propose with again.

        Raises `RanksDisagree` if graphs or entries still differ, and `RanksMissing` if a rank has died or
        timed out.
        """
        known = tuple(sorted(proposal.breaks, key=lambda stop: (stop.index, stop.visit)))
        said = _Word(f"the compilation of {proposal.entry}", breaks=known, digest=proposal.digest)
        words = self._say(said, timeout)
        breaks = frozenset(stop for word in words.values() for stop in word.breaks)
        if self._adopted is None:
            restart = any(frozenset(word.breaks) != breaks for word in words.values())
        else:
            # A rank may not reach part of the union; then the comparison of graphs decides.
            restart = not breaks <= self._adopted
        self._adopted = breaks if restart else None
        if restart:
            return breaks
        if len({word.digest for word in words.values()}) > 1:
            shown = self._say(_Word(f"the graph of {proposal.entry}", ops=proposal.ops), timeout)
            raise _different_graphs(proposal.entry, {rank: word.ops for rank, word in shown.items()})
        return None

    def any_misses(self, entry: str, missed: bool, digest: str, timeout: float) -> bool:
        """Return whether some rank's guards do not hold, or hold for another graph: then all ranks trace.

        Call it on every rank at every call, whether there is a miss or not.
        """
        words = self._say(_Word(f"a call of {entry}", missed=missed, digest=digest), timeout).values()
        return any(word.missed for word in words) or len({word.digest for word in words}) > 1

    def fail(self, entry: str, error: BaseException, timeout: float) -> None:
        """Announce to the waiting ranks that this one raises instead: they raise `RanksDisagree` at once."""
        said = _Word(f"a failure in {entry}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        self._adopted = None
        try:
            self._say(said, min(timeout, COURTESY_SECONDS))
        except (RanksMissing, RanksDisagree):
            return  # they were not waiting, or have received it

    def _say(self, word: _Word, timeout: float) -> Mapping[int, _Word]:
        """Send a message and return those of all ranks, which are at the same step."""
        if self._missing is not None:
            raise RanksMissing(self._missing.fact, self._missing.missing)
        table = self._rendezvous.exchange(msgspec.json.encode(word).decode(), word.step, timeout)
        absent = {rank: entry for rank, entry in table.items() if isinstance(entry, Absent)}
        if absent:
            self._missing = RanksMissing(next(iter(absent.values())).fact, tuple(absent))
            raise self._missing
        words = {rank: msgspec.json.decode(str(entry), type=_Word) for rank, entry in table.items()}
        if len({word.step for word in words.values()}) > 1:
            self._adopted = None
            told, groups = _groups_told({rank: word.step for rank, word in words.items()})
            raise RanksDisagree(f"the ranks are out of step: {told}", groups)
        return words


def collective_of(group: Any = None) -> Collective | None:
    """Return this process's side of a group's agreements; None without a job or other ranks."""

    def make(group: Any) -> Collective | None:
        rendezvous = join(group, "frontend")
        return None if rendezvous is None else Collective(rendezvous)

    return _collectives.of(group, make)


def _timeout() -> float:
    return WatchSettings().changed(rank_timeout=os.environ.get(f"{PREFIX}RANK_TIMEOUT") or None).rank_timeout


_collectives: PerGroup[Collective] = PerGroup()


class AgreeingRanks:
    """The ranks of a job that compile only what all of them have captured (`RankHooks`)."""

    def agree_on(
        self,
        log: SpeculationLog,
        function: FunctionType,
        index: int,
        graph: GraphModule,
        *,
        finish: bool,
    ) -> bool:
        collective = collective_of()
        if collective is None:
            return True
        ops = (*_lines(graph), _end(log, finish))
        digest = hashlib.sha256("\n".join(ops).encode()).hexdigest()
        proposal = Proposal(entry_of(function, index), frozenset(log.failures), ops, digest)
        breaks = collective.run_compiler_collective(proposal, _timeout())
        for stop in breaks or ():
            where = where_of(program_of(function.__code__), stop.index)
            own = log.failures.get(stop) or Failure(_ELSEWHERE, where)
            # What Python calls there is not traced: it may be a different function on another rank.
            log.failures[stop] = replace(own, inside=False)
        graph.meta[_AGREED] = digest
        return breaks is None

    def some_rank_misses(self, function: FunctionType, index: int, found: GraphModule | None) -> bool:
        collective = collective_of()
        if collective is None:
            return found is None
        agreed = "" if found is None else str(found.meta.get(_AGREED, ""))
        return collective.any_misses(entry_of(function, index), found is None, agreed, _timeout())

    @contextmanager
    def failures_told(self, function: FunctionType, index: int) -> Iterator[None]:
        try:
            yield
        except (RanksDisagree, RanksMissing):
            raise  # as on all ranks
        except Exception as error:
            if (collective := collective_of()) is not None:
                collective.fail(entry_of(function, index), error, _timeout())
            raise


def entry_of(function: FunctionType, index: int) -> str:
    """Return the start of a trace as text that is equal on all ranks."""
    where = where_of(program_of(function.__code__), index)
    return f"{where.function} ({Path(where.file).name}:{where.line}, instruction {index})"


def _end(log: SpeculationLog, finish: bool) -> str:
    """Return what comes after the graph, which has to be equal on all ranks too."""
    if not log.path or log.current not in log.failures:
        return "the function returns"
    return f"Python runs {'the rest from ' if finish else ''}instruction {log.current.index}"


def _lines(graph: GraphModule) -> Iterator[str]:
    for node in graph.graph.nodes:
        arguments = [_OWN.sub("", str(argument)) for argument in node.args]
        arguments += [f"{name}={_OWN.sub('', str(value))}" for name, value in node.kwargs.items()]
        target: Any = node.target
        name = f"{node.op} {target}" if isinstance(target, str) else getattr(target, "__name__", str(target))
        yield f"{node.name} = {_OWN.sub('', name)}({', '.join(arguments)})"
