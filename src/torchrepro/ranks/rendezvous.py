"""Rendezvous: the ranks of a process group exchange one word each, round after round.

They talk through the job's store, never through the user's process group: a collective of ours among the
user's own could be paired with the wrong one and stop the job, and would wait for the device's stream.

A round is a table with one entry per rank, and each entry is written once (compare-and-set): by the rank
itself, or on its behalf with the reason why it does not come. A neighbour on the same machine writes that its
process has ended; the first rank to time out writes that it is late. So all ranks read the same
table, and a rank that comes late finds its entry taken.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from torchrepro.nouns.errors import TorchReproError
from torchrepro.ranks.process import Process, place
from torchrepro.ranks.store import JobStore, StoreLost

COURTESY_SECONDS = 5.0
"""The wait of a rank for others that may no longer wait for it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.1
_LOOK_SECONDS = 0.5
"""Between two looks at the processes of this machine."""
_DYING_SECONDS = 2.0
"""A process that is killed closes its connections a moment before it is gone."""
_ALL, _LOOK = "all", "look"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Absent:
    """The entry of a rank that did not come."""

    fact: str
    dead: bool = False
    left_behind: str = ""
    """What a dead rank had announced (`Rendezvous.announce`)."""


Table = Mapping[int, "str | Absent"]


class Rendezvous:
    """This process as one rank of a group. Raises nothing: a lost store is a table without answers."""

    def __init__(self, store: JobStore, rank: int, members: Sequence[int]) -> None:
        self.rank = rank
        self.members = tuple(members)
        self._store = store
        self._place = place()
        self._one_at_a_time = threading.Lock()
        self._rounds: Counter[str] = Counter()
        self._acquainted = False
        self._neighbours: dict[int, Process] = {}
        # A group that is destroyed and made again may use the same store: its members come a second time.
        self._life = store.add(f"joined/{rank}", 1)
        number = store.add(self._key(f"{self._place}/count"), 1)
        store.set({self._key(f"{self._place}/{number}"): _encoded(Process.own(rank))})

    def exchange(self, word: str, step: str, timeout: float, channel: str = "step") -> Table:
        """Return what every rank reports in the next round of a channel; at least one turn is waited for.

        `step` says where this rank is, as a noun, for the fact about ranks that do not come.
        """
        with self._one_at_a_time:
            try:
                if not self._acquainted:
                    # The first round is held twice: a rank that dies later is then known to its neighbours.
                    table = self._round(word, step, timeout, channel)
                    if any(isinstance(entry, Absent) for entry in table.values()):
                        return table
                    self._meet_neighbours()
                    self._acquainted = True
                return self._round(word, step, timeout, channel)
            except StoreLost as lost:
                return self._without_store(word, lost)

    def begun(self, channel: str) -> bool:
        """Return whether some rank has come to the next round of a channel."""
        try:
            return self._store.has(self._name(channel, 1) + "first")
        except StoreLost:
            return False

    def first(self, name: str, value: str) -> str:
        """Return the value that the first rank to call this has given for `name`."""
        try:
            return self._store.first(self._key(name), value)
        except StoreLost:
            return value

    def announce(self, text: str) -> None:
        """Set what the others read about this rank if its process dies in the next step."""
        try:
            self._store.set({self._key(f"left_behind/{self.rank}"): text})
        except StoreLost:
            return  # the next round reports it

    def leave(self, fact: str, channels: Sequence[str] = ("step",)) -> None:
        """Report that this rank ends normally, or has destroyed its process group."""
        farewell = {self._key(f"left/{self.rank}"): "1"}
        for channel in channels:
            name = self._name(channel, 1)
            farewell |= {f"{name}{self.rank}": _encoded(Absent(fact)), f"{name}wake": _LOOK}
        try:
            self._store.set(farewell, timeout=1.0)
        except StoreLost:
            return  # the rank that kept the store has left first
        if self._may_keep_the_store:
            time.sleep(2 * _LONGEST_PAUSE)  # ranks that still wait look once more
        self._store.close()

    def _round(self, word: str, step: str, timeout: float, channel: str) -> Table:
        self._rounds[channel] += 1
        name, store = self._name(channel), self._store
        own = _encoded(word)
        if store.first(f"{name}{self.rank}", own) == own:
            if store.first(f"{name}first", own) != own:
                store.set({f"{name}differ": "1"})
            if store.add(f"{name}count", 1) == len(self.members):
                store.set({f"{name}wake": _ALL})
        if self._wait(name, step, timeout) and not store.has(f"{name}differ"):
            table: Table = dict.fromkeys(self.members, word)
        else:
            entries = {rank: store.get(f"{name}{rank}") or '""' for rank in self.members}
            table = {rank: msgspec.json.decode(text, type=str | Absent) for rank, text in entries.items()}
        came = sum(isinstance(entry, str) for entry in table.values())
        if len({*table.values()}) > 1:
            self._let_others_read(name, came)
        if came == len(self.members):  # a rank that has come to this round has left the one before
            past = self._name(channel, -1)
            shared = ("first", "differ", "count", "wake", "read") if self._may_keep_the_store else ()
            store.delete(*(f"{past}{each}" for each in (self.rank, *shared)))
        return table

    def _wait(self, name: str, step: str, timeout: float) -> bool:
        """Wait until the table is full, and fill it when the time is over; True if all ranks have counted."""
        next_look = 0.0
        for now in _moments(time.monotonic() + timeout):
            wake = self._store.get(f"{name}wake")
            if wake == _ALL:
                return True
            if now >= next_look or wake == _LOOK:
                next_look = now + _LOOK_SECONDS
                self._speak_for_the_dead(name, step)
                if self._store.has(*(f"{name}{rank}" for rank in self.members)):
                    return False
        missing = [rank for rank in self.members if not self._store.has(f"{name}{rank}")]
        if missing:
            late = Absent(f"{name_ranks(missing)} did not come to {step} within {timeout:g} s")
            for rank in missing:
                self._store.first(f"{name}{rank}", _encoded(late))
            self._store.set({f"{name}wake": _LOOK})
        return False

    def _let_others_read(self, name: str, readers: int) -> None:
        """Count this rank as a reader; the one that keeps the store waits for the others; then it may end."""
        try:
            self._store.add(f"{name}read", 1)
            if self._may_keep_the_store:
                for _ in _moments(time.monotonic() + COURTESY_SECONDS):
                    if self._store.add(f"{name}read", 0) >= readers:
                        break
        except StoreLost:
            return  # we have read everything

    @property
    def _may_keep_the_store(self) -> bool:
        """Unless the launcher keeps it, it is the first rank that does."""
        return self.rank == self.members[0]

    def _without_store(self, word: str, lost: StoreLost) -> Table:
        """Return what is known without the others: which neighbours have ended with the store."""
        dead: list[int] = []
        for _ in _moments(time.monotonic() + (_DYING_SECONDS if self._neighbours else 0.0)):
            dead = sorted(rank for rank, process in self._neighbours.items() if process.gone())
            if dead:
                break
        if dead:
            fact = f"{_ended(dead)}, and the job's store with it"
        else:
            fact = f"the store of this job cannot be reached ({lost})"
        table: Table = {rank: Absent(fact, dead=rank in dead) for rank in self.members}
        return {**table, self.rank: word}

    def _meet_neighbours(self) -> None:
        """Read the other ranks on this machine from the store: those that have joined so far."""
        count = self._store.add(self._key(f"{self._place}/count"), 0)
        for number in range(1, count + 1):
            if (text := self._store.get(self._key(f"{self._place}/{number}"))) is not None:
                process = msgspec.json.decode(text, type=Process)
                if process.rank != self.rank:
                    self._neighbours[process.rank] = process

    def _speak_for_the_dead(self, name: str, step: str) -> None:
        """Fill in the entries of the neighbours whose processes ended without one."""
        self._meet_neighbours()
        for rank, process in self._neighbours.items():
            entry, left = f"{name}{rank}", self._key(f"left/{rank}")
            if process.gone() and not self._store.has(entry) and not self._store.has(left):
                announced = self._store.get(self._key(f"left_behind/{rank}")) or ""
                absent = Absent(f"{_ended([rank])} before {step}", dead=True, left_behind=announced)
                self._store.first(entry, _encoded(absent))
                self._store.set({f"{name}wake": _LOOK})

    def _key(self, name: str) -> str:
        return f"{self._life}/{name}"

    def _name(self, channel: str, ahead: int = 0) -> str:
        return self._key(f"{channel}/{self._rounds[channel] + ahead}/")


def join(group: Any, purpose: str) -> Rendezvous | None:
    """Return this process as a rank of a process group; None where there is no other rank.

    Checked on torch 2.11 to 2.15 (`ProcessGroup.group_name`, `get_process_group_ranks`).
    """
    from torchrepro.torch_api.distributed import default_store  # it imports torch, which takes seconds

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
    prefix = f"torchrepro/{purpose}/attempt_{attempt}/group_{group.group_name}"
    return Rendezvous(JobStore(store, prefix), distributed.get_rank(), members)


class PerGroup(Generic[T]):
    """What a process keeps for each of its process groups, made when first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: WeakKeyDictionary[Any, tuple[int, T | None]] = WeakKeyDictionary()

    def of(self, group: Any, make: Callable[[Any], T | None]) -> T | None:
        """Return what `make` gives for a group (None: of the whole job); None without a job."""
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        group = distributed.group.WORLD if group is None else group
        with self._lock:
            if group not in self._made:
                self._made[group] = os.getpid(), make(group)
            pid, found = self._made[group]
        # A child that is forked from a rank inherits the group, but is not that rank.
        return found if pid == os.getpid() else None


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`; `ranks 0, 2 and 5`; `ranks 0 to 7 and 12`."""
    words: list[str] = []
    for _, numbered in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in numbered]
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _ended(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} ended"


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _moments(deadline: float) -> Iterator[float]:
    """Yield the time now, then after longer and longer sleeps, until the deadline."""
    pause = _FIRST_PAUSE
    while (left := deadline - (now := time.monotonic())) > 0:
        yield now
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
