"""Rounds: the ranks of a process group tell one another a word, all at once, time and again.

They talk through the job's store, never through the user's group: a collective of ours among the user's own
could be paired with the wrong one, and would wait for the device's stream. A round has one end for all:
either every word is there, or the first rank to lose patience has closed it, and nobody waits any more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from torchrepro.nouns.errors import TorchReproError
from torchrepro.ranks.agreement import name_ranks
from torchrepro.ranks.process import Process, place
from torchrepro.ranks.store import JobStore, StoreLost, default_store

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.05
_LOOK_SECONDS = 0.5
"""Between two looks at the processes of this machine."""
_DYING_SECONDS = 2.0
"""A process that is killed closes its connections a moment before it is gone."""
_COMPLETE = "complete"


class RanksMissing(TorchReproError):
    """A rank has died, or has not come in time. The ranks that have come do not wait for it again."""

    def __init__(self, fact: str, missing: Sequence[int]) -> None:
        super().__init__(
            fact, next_step="see what that rank does instead, or raise TORCHREPRO_RANK_TIMEOUT (seconds)"
        )
        self.missing = tuple(missing)


@dataclass(frozen=True, slots=True)
class _Closed:
    """Why a round ended without all words."""

    fact: str
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    process: Process
    place: str


class Rounds:
    """This process as one rank of a group. Every rank tells its word in the same order."""

    def __init__(self, store: JobStore, rank: int, members: Sequence[int]) -> None:
        self.rank = rank
        self.members = tuple(members)
        self._store = store
        self._round = 0
        self._closed: _Closed | None = None
        self._one_at_a_time = threading.Lock()
        self._known: dict[int, _Member] = {}
        # A group that is destroyed and made again may use the same store: its members come a second time.
        self._life = store.add(f"joined/{rank}", 1)
        own = _Member(Process.own(rank), place())
        store.set({self._key(f"member/{rank}"): msgspec.json.encode(own).decode()})

    def tell(self, word: str, step: str, timeout: float) -> dict[int, str]:
        """Everyone's words of this round. `RanksMissing` if they are not all there in time.

        `step` says where this rank is, as a noun.
        """
        with self._one_at_a_time:
            if self._closed is None:
                try:
                    words = self._tell(word, step, timeout)
                except StoreLost as lost:
                    self._closed = self._without_store(lost)
                else:
                    return words
            raise RanksMissing(self._closed.fact, self._closed.missing)

    def _tell(self, word: str, step: str, timeout: float) -> dict[int, str]:
        if not self._known:
            # A round before the first: whoever dies after it is known to all who could miss it.
            self._one_round("", step, timeout)
            self._known = {rank: self._member(rank) for rank in self.members}
        return self._one_round(word, step, timeout)

    def _one_round(self, word: str, step: str, timeout: float) -> dict[int, str]:
        self._round += 1
        self._store.set({self._word(self.rank): word})
        end = self._store.first(self._now("end"), self._wait(step, timeout))
        if end != _COMPLETE:
            self._closed = msgspec.json.decode(end, type=_Closed)
            raise RanksMissing(self._closed.fact, self._closed.missing)
        words = {rank: self._store.get(self._word(rank)) or "" for rank in self.members}
        # Whoever has come to this round has done with the one before.
        past = [self._word(self.rank, self._round - 1)]
        past += [self._now("end", self._round - 1)] if self.rank == self.members[0] else []
        self._store.delete(*past)
        return words

    def _wait(self, step: str, timeout: float) -> str:
        """How this round ends as far as this rank can tell."""
        started = next_look = time.monotonic()
        words = [self._word(rank) for rank in self.members]
        for now in _moments(started + timeout):
            if self._store.has(*words):
                return _COMPLETE
            if now >= next_look:
                next_look = now + _LOOK_SECONDS
                gone = tuple(rank for rank in self._missing() if self._is_gone(rank))
                if gone:
                    fact = f"{_ended(gone)} before {step}, where rank {self.rank} waits"
                    return _encoded(_Closed(fact, gone))
                if self._store.has(self._now("end")):  # closed by another; which way it says itself
                    return _COMPLETE
        missing = self._missing()
        if not missing:
            return _COMPLETE
        fact = (
            f"{name_ranks(missing)} did not come within {timeout:g} s to {step}, where rank {self.rank} waits"
        )
        return _encoded(_Closed(fact, missing))

    def _missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.members if not self._store.has(self._word(rank)))

    def _is_gone(self, rank: int) -> bool:
        """Whether a process of this machine has ended without a word in this round."""
        if not self._store.has(self._key(f"member/{rank}")):
            return False  # it has not traced anything yet
        member = self._member(rank)
        return member.place == place() and member.process.gone() and not self._store.has(self._word(rank))

    def _member(self, rank: int) -> _Member:
        return msgspec.json.decode(self._store.get(self._key(f"member/{rank}")) or "{}", type=_Member)

    def _without_store(self, lost: StoreLost) -> _Closed:
        """The rank that keeps the store may have died with it."""
        neighbours = {rank: one.process for rank, one in self._known.items() if one.place == place()}
        for _ in _moments(time.monotonic() + (_DYING_SECONDS if neighbours else 0)):
            gone = tuple(rank for rank, process in neighbours.items() if process.gone())
            if gone:
                return _Closed(f"{_ended(gone)}, and the job's store with it", gone)
        others = tuple(rank for rank in self.members if rank != self.rank)
        return _Closed(f"the store of this job cannot be reached ({lost})", others)

    def _key(self, name: str) -> str:
        return f"{self._life}/{name}"

    def _now(self, name: str, number: int | None = None) -> str:
        return self._key(f"round/{self._round if number is None else number}/{name}")

    def _word(self, rank: int, number: int | None = None) -> str:
        return self._now(f"word/{rank}", number)


def _ended(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} ended"


def _encoded(closed: _Closed) -> str:
    return msgspec.json.encode(closed).decode()


def _moments(deadline: float) -> Iterator[float]:
    """The time now, then after longer and longer sleeps, until the deadline."""
    pause = _FIRST_PAUSE
    while (left := deadline - (now := time.monotonic())) > 0:
        yield now
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def join(group: Any) -> Rounds | None:
    """This process as a rank of a process group; None where there is nobody to agree with.

    Checked on torch 2.11 to 2.13 (`ProcessGroup.group_name`, `get_process_group_ranks`).
    """
    distributed: Any = sys.modules["torch.distributed"]
    # A fake group is one process that plays a rank of many.
    if distributed.get_rank(group) < 0 or distributed.get_backend(group) == "fake":
        return None
    members = distributed.get_process_group_ranks(group)
    if len(members) == 1:
        return None
    store = default_store()
    if store is None:
        raise TorchReproError(
            f"a process group of {distributed.get_backend(group)} has no store for ranks to agree through",
            next_step='trace without ranks="agree"',
        )
    # Workers that are started again find the store of those before them.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"torchrepro/frontend/attempt_{attempt}/group_{group.group_name}"
    return Rounds(JobStore(store, prefix), distributed.get_rank(), members)
