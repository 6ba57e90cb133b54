"""The compiler collective: ranks take the union of their breaks, trace again, and compile only what all have.

Each step is a round (`rounds.py`) in which every rank says where it is and what it has. All hear the same
words, so all come to the same decision without a further exchange: go on, restart, or raise.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from torchrepro.catch.settings import PREFIX, WatchSettings
from torchrepro.ranks.rounds import RanksMissing, Rounds, join
from torchrepro.second_opinion.ranks.proposal import (
    Agreement,
    BreakPoint,
    Proposal,
    different_graphs,
    different_steps,
)

_COURTESY_SECONDS = 5.0
"""How long a rank that has failed stays to be heard."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a rank says in a round."""

    step: str
    """Where it is, a noun for a reader: equal on ranks that are in step."""
    missed: bool = False
    """Whether its guards do not hold."""
    breaks: tuple[BreakPoint, ...] = ()
    digest: str = ""
    ops: tuple[str, ...] = ()


@dataclass(slots=True)
class Collective:
    """One rank's side of the agreements of a process group."""

    rounds: Rounds
    pid: int = field(default_factory=os.getpid)
    _adopted: frozenset[BreakPoint] | None = None
    """The union that the ranks were told to trace with, until they agree."""

    def propose(self, proposal: Proposal, timeout: float) -> Agreement:
        """Hear what all would compile: agree, or be told to trace again with all breaks."""
        said = Word(
            f"the compilation of {proposal.entry}",
            breaks=tuple(sorted(proposal.breaks)),
            digest=proposal.digest,
        )
        words = self._say(said, timeout)
        breaks = frozenset(point for word in words.values() for point in word.breaks)
        if self._adopted is None:
            restart = any(frozenset(word.breaks) != breaks for word in words.values())
        else:
            # A rank that leaves part of the union out does not come to those places: its graph will tell.
            restart = not breaks <= self._adopted
        if restart:
            self._adopted = breaks
            return Agreement(breaks, restart=True)
        self._adopted = None
        if len({word.digest for word in words.values()}) > 1:
            shown = self._say(Word(f"the graph of {proposal.entry}", ops=proposal.ops), timeout)
            raise different_graphs(proposal.entry, {rank: word.ops for rank, word in shown.items()})
        return Agreement(breaks, restart=False)

    def any_misses(self, entry: str, missed: bool, digest: str, timeout: float) -> bool:
        words = self._say(Word(f"a call of {entry}", missed=missed, digest=digest), timeout)
        return (
            any(word.missed for word in words.values()) or len({word.digest for word in words.values()}) > 1
        )

    def fail(self, entry: str, error: BaseException, timeout: float) -> None:
        """Be heard by the ranks that wait. This one has an error of its own to raise."""
        said = Word(f"a failure in {entry}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        self._adopted = None
        try:
            self.rounds.tell(_encoded(said), said.step, min(timeout, _COURTESY_SECONDS))
        except RanksMissing:
            return  # they were not waiting

    def _say(self, word: Word, timeout: float) -> Mapping[int, Word]:
        """Everyone's word, all of them at the same step."""
        heard = self.rounds.tell(_encoded(word), word.step, timeout)
        words = {rank: msgspec.json.decode(text, type=Word) for rank, text in heard.items()}
        if len({word.step for word in words.values()}) > 1:
            self._adopted = None
            raise different_steps({rank: word.step for rank, word in words.items()})
        return words


def run_compiler_collective(
    proposal: Proposal, *, group: Any = None, timeout: timedelta | None = None
) -> Agreement:
    """Agree with the other ranks of a group (None: of the job) on what is compiled. Call it before compiling.

    After `restart` every rank traces again with `breaks` and calls this again. `RanksDisagree` where graphs
    or entries differ all the same, `RanksMissing` where a rank has died or does not come within `timeout`
    (None: TORCHREPRO_RANK_TIMEOUT, 60 s). Without a job, or alone in it, a rank agrees with itself.
    """
    collective = collective_of(group)
    if collective is None:
        return Agreement(proposal.breaks, restart=False)
    return collective.propose(proposal, _seconds(timeout))


def should_recompile(
    miss: bool, *, entry: str, digest: str = "", group: Any = None, timeout: timedelta | None = None
) -> bool:
    """Whether any rank's guards do not hold at this call of `entry`: then all ranks trace.

    Call it on every rank at every call, whether there is a miss or not. `digest` is that of the graph for
    which the guards hold: ranks with different ones trace too, to agree or to be told where they differ.
    """
    collective = collective_of(group)
    return miss if collective is None else collective.any_misses(entry, miss, digest, _seconds(timeout))


def tell_failure(
    entry: str, error: BaseException, *, group: Any = None, timeout: timedelta | None = None
) -> None:
    """Tell the ranks that wait for this one that it raises instead: they raise `RanksDisagree`, at once.

    For what is raised between `should_recompile` and an agreement, but for the errors of this package.
    """
    collective = collective_of(group)
    if collective is not None:
        collective.fail(entry, error, _seconds(timeout))


def collective_of(group: Any = None) -> Collective | None:
    """This process's side of a group's agreements; None without a job, or alone in it."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD if group is None else group
    with _joining:
        if group not in _joined:
            rounds = join(group)
            _joined[group] = None if rounds is None else Collective(rounds)
        found = _joined[group]
    # A child that is forked from a rank inherits the group, but is not that rank.
    return found if found is not None and found.pid == os.getpid() else None


def _seconds(timeout: timedelta | None) -> float:
    if timeout is not None:
        return timeout.total_seconds()
    return WatchSettings().changed(rank_timeout=os.environ.get(f"{PREFIX}RANK_TIMEOUT") or None).rank_timeout


def _encoded(word: Word) -> str:
    return msgspec.json.encode(word).decode()


_joining = threading.Lock()
_joined: WeakKeyDictionary[Any, Collective | None] = WeakKeyDictionary()
