"""Ranks: the processes of one `torch.distributed` job tell one another how they fared before anyone raises.

They talk through the job's store, never through the user's process group: a collective of ours among the
user's own could be paired with the wrong one and stop the job.

An *event* is a step at which every rank is expected ("graph 3 compiled"). A healthy rank counts itself there
and waits for the count to be complete. A failing one leaves its verdict and rings instead; whoever waits, at
whichever event, then leaves a verdict too, and all go on with the verdicts of all. Neighbours on a machine
speak for a process that is gone. Ranks that turn out to take different steps stop waiting for one another.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from torchrepro.nouns.messages import say
from torchrepro.ranks.agreement import Agreement, Failure, name_ranks
from torchrepro.ranks.process import Process, place
from torchrepro.ranks.store import JobStore, StoreLost, default_store

RUN_ID = "TORCHREPRO_RUN_ID"

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1
_LOOK_SECONDS = 0.5
"""Between two looks at the processes of this machine."""
_COURTESY_SECONDS = 5.0
"""The wait of a failing rank for others that no longer wait for it."""
_DYING_SECONDS = 2.0
"""A process that is killed closes its connections a moment before it is gone."""


class Ranks:
    """This process as one rank of a job. Raises nothing: a lost store is an agreement without answers."""

    def __init__(
        self,
        store: JobStore,
        rank: int,
        world_size: int,
        *,
        timeout: float = 60.0,
        note: Callable[[str], None] = say,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._timeout = timeout
        self._note = note
        self._pid = os.getpid()
        self._place = place()
        self._one_at_a_time = threading.Lock()
        self._in_step = True
        self._round = 0
        """Failures that everyone has heard of: a program may catch one and go on."""
        self._steps = 0
        self._acquainted = False
        self._neighbours: dict[int, Process] = {}
        self._next_look = 0.0
        # A group that is destroyed and made again may use the same store: its members come a second time.
        self._life = store.add(f"joined/{rank}", 1)
        self._introduce_ourselves()

    @classmethod
    def current(cls, *, timeout: float = 60.0, note: Callable[[str], None] = say) -> Ranks | None:
        """The ranks of the default process group as it is now; None without one, or with a single rank."""
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        group = distributed.group.WORLD
        with _joining:
            if group not in _joined:
                _joined[group] = _join(distributed, group, timeout, note)
            ranks = _joined[group]
        # A child that is forked from a rank inherits the group, but is not that rank.
        return ranks if ranks is not None and ranks._pid == os.getpid() else None

    def run_id(self, own: str) -> str:
        """One name of the run for all ranks: that of their launcher, or else that of the first to ask."""
        given = os.environ.get(RUN_ID)
        if given:
            return given
        try:
            return self._store.first(self._key("run_id"), own)
        except StoreLost:
            return own

    def announce(self, bundle: str) -> None:
        """Tell where to find what this rank leaves behind if it dies in what it does next."""
        try:
            self._store.set({self._key(f"bundle/{self.rank}"): bundle})
        except StoreLost:
            return  # the next agreement says so

    def agree(self, event: str, failure: Failure | None = None) -> Agreement:
        """Tell the others how this rank fared, wait for them, and hear how they did.

        If the agreement is `failing`, every rank raises: this one its own exception if it has one, else
        `agreement.error()`.
        """
        with self._one_at_a_time:
            try:
                return self._exchange(event, failure)
            except StoreLost as lost:
                return self._without_store(failure, lost)

    def tell(self, failure: Failure) -> Agreement:
        """Tell of a failure where the others are not expected, and give them only a moment to hear of it."""
        with self._one_at_a_time:
            try:
                return self._share_verdicts(failure, self._moment())
            except StoreLost as lost:
                return self._without_store(failure, lost)

    def leave(self) -> None:
        """Tell that this rank ends in good order, or has destroyed its process group."""
        farewell = {
            self._key(f"left/{self.rank}"): "1",
            self._now(f"verdict/{self.rank}"): json.dumps({"left": True}),
            self._key("apart"): f"{name_ranks([self.rank])} has left the job",
        }
        try:
            self._store.set(farewell, patience=1.0)
        except StoreLost:
            return  # whoever kept the store was the first to leave
        if self._may_keep_the_store:
            time.sleep(2 * _LONGEST_PAUSE)  # whoever waits looks once more
        self._store.close()

    def _exchange(self, event: str, failure: Failure | None) -> Agreement:
        deadline = time.monotonic() + self._timeout
        met = self._meet(event, deadline) if failure is None and self._in_step else None
        if met is not None:
            return met
        if failure is not None or self._rung():
            return self._share_verdicts(failure, deadline)
        return Agreement()

    def _meet(self, event: str, deadline: float) -> Agreement | None:
        """Wait until all have come to this event, or the time is over; None if there is a reason to stop."""
        if not self._acquainted:
            # The first event is met twice: whoever dies after it is known to all who could miss it.
            met = self._come_to(event, deadline)
            if met is None or met.missing:
                return met
            self._meet_neighbours()
            self._acquainted = True
        return self._come_to(event, deadline)

    def _come_to(self, event: str, deadline: float) -> Agreement | None:
        self._steps += 1
        step = self._step(self._steps)
        here = self._store.first(f"{step}/event", event)
        if here != event:
            self._part(f"{name_ranks([self.rank])} is at {event!r} while others are at {here!r}")
            return None
        self._store.set({self._now(f"at/{self.rank}"): str(self._steps)})
        if self._store.add(f"{step}/count", 1) == self.world_size:
            self._store.set({f"{step}/complete": "1"})
            # Whoever has come here has left the step before.
            past = self._step(self._steps - 1)
            self._store.delete(f"{past}/event", f"{past}/count", f"{past}/complete")
        for _ in _pauses(deadline):
            # In this order: a rank that has been here with everyone may fail at its next event right away.
            rung, complete = self._rung(), self._store.has(f"{step}/complete")
            if complete:
                return Agreement()
            if rung:
                return None
            if (reason := self._store.get(self._key("apart"))) is not None:
                self._stop_waiting(reason)
                return None
            self._look_around()
        missing = tuple(rank for rank in range(self.world_size) if self._steps_of(rank) < self._steps)
        if missing:
            self._part(f"{name_ranks(missing)} did not come to {event!r} within {self._timeout:g} s")
        return Agreement(missing=missing)

    def _rung(self) -> bool:
        """True if a rank has failed or died since all verdicts were shared last."""
        return self._store.has(self._now("failed"))

    def _share_verdicts(self, failure: Failure | None, deadline: float) -> Agreement:
        """Leave our verdict, wait for those of all others, and read them."""
        own = {self._now(f"verdict/{self.rank}"): json.dumps({"failure": failure and asdict(failure)})}
        # The verdict first: who hears the bell finds it.
        self._store.set(own if failure is None else {**own, self._now("failed"): "1"})
        if not self._in_step:
            deadline = min(deadline, self._moment())
        keys = [self._now(f"verdict/{rank}") for rank in range(self.world_size)]
        for _ in _pauses(deadline):
            if self._store.has(*keys):
                break
            self._look_around()
        found = [self._store.get(key) for key in keys]
        agreement = _agreement_of([json.loads(verdict) if verdict else {} for verdict in found])
        self._let_others_read(self.world_size - len(agreement.dead) - len(agreement.missing))
        self._round += 1
        self._steps = 0
        self._in_step = self._in_step and not agreement.missing
        return agreement

    def _let_others_read(self, readers: int) -> None:
        """After this the rank whose process keeps the store may raise, and end."""
        try:
            self._store.add(self._now("read"), 1)
            if self._may_keep_the_store:
                for _ in _pauses(self._moment()):
                    if self._store.add(self._now("read"), 0) >= readers:
                        break
        except StoreLost:
            return  # we have read everything

    def _moment(self) -> float:
        return time.monotonic() + min(self._timeout, _COURTESY_SECONDS)

    @property
    def _may_keep_the_store(self) -> bool:
        """Unless the launcher keeps it, it is the first rank that does."""
        return self.rank == 0

    def _without_store(self, failure: Failure | None, lost: StoreLost) -> Agreement:
        """What can be known without the others: which of our neighbours are gone with the store."""
        own = {} if failure is None else {self.rank: failure}
        if not self._in_step:
            return Agreement(failed=own)
        dead: tuple[int, ...] = ()
        for _ in _pauses(time.monotonic() + _DYING_SECONDS if self._neighbours else 0.0):
            dead = tuple(sorted(rank for rank, process in self._neighbours.items() if process.gone()))
            if dead:
                break
        missing = tuple(rank for rank in range(self.world_size) if rank != self.rank and rank not in dead)
        if dead:
            self._in_step = False
        else:
            self._stop_waiting(f"the store of this job cannot be reached ({lost})")
        return Agreement(failed=own, missing=missing, dead=dead)

    def _part(self, reason: str) -> None:
        """Tell everyone that the ranks do not take the same steps."""
        self._stop_waiting(self._store.first(self._key("apart"), reason))

    def _stop_waiting(self, reason: str) -> None:
        if self._in_step:
            self._note(f"{reason}; {name_ranks([self.rank])} no longer waits for the others at such events")
        self._in_step = False

    def _introduce_ourselves(self) -> None:
        own = json.dumps(asdict(Process.own(self.rank)))
        number = self._store.add(self._key(f"{self._place}/count"), 1)
        self._store.set({self._key(f"{self._place}/{number}"): own})

    def _meet_neighbours(self) -> None:
        """Learn of the other ranks on this machine: those who have joined so far."""
        count = self._store.add(self._key(f"{self._place}/count"), 0)
        for number in range(1, count + 1):
            if (text := self._store.get(self._key(f"{self._place}/{number}"))) is not None:
                process = msgspec.json.decode(text, type=Process)
                if process.rank != self.rank:
                    self._neighbours[process.rank] = process

    def _look_around(self) -> None:
        """Speak for the neighbours that are gone without a word."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._meet_neighbours()
        for rank, process in self._neighbours.items():
            verdict, left = self._now(f"verdict/{rank}"), self._key(f"left/{rank}")
            if process.gone() and not self._store.has(verdict) and not self._store.has(left):
                bundle = self._store.get(self._key(f"bundle/{rank}")) or ""
                self._store.set({verdict: json.dumps({"dead": bundle}), self._now("failed"): "1"})

    def _steps_of(self, rank: int) -> int:
        return int(self._store.get(self._now(f"at/{rank}")) or 0)

    def _key(self, name: str) -> str:
        return f"{self._life}/{name}"

    def _now(self, name: str) -> str:
        return self._key(f"round/{self._round}/{name}")

    def _step(self, number: int) -> str:
        return self._now(f"step/{number}")


def _join(distributed: Any, group: Any, timeout: float, note: Callable[[str], None]) -> Ranks | None:
    """Make this process known to the other ranks of the group, until the group or the process ends."""
    from torch.utils.data import get_worker_info

    if distributed.get_world_size() == 1:
        return None
    # A fake group is one process that plays a rank of many; a data loader's worker is the child of a rank.
    if distributed.get_backend() == "fake" or get_worker_info() is not None:
        return None
    # Workers that are started again find the store of those before them.
    prefix = f"torchrepro/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        store = default_store()
        if store is None:
            raise StoreLost("its backend has none")
        ranks = Ranks(
            JobStore(store, prefix),
            distributed.get_rank(),
            distributed.get_world_size(),
            timeout=timeout,
            note=note,
        )
    except Exception as exc:
        note(f"the ranks of this job cannot tell one another of failures: no store ({exc})")
        return None
    # Not `atexit`, which the children that multiprocessing forks never come to.
    Finalize(group, ranks.leave, exitpriority=0)
    return ranks


def _agreement_of(verdicts: list[dict[str, Any]]) -> Agreement:
    dead = {rank: verdict["dead"] for rank, verdict in enumerate(verdicts) if "dead" in verdict}
    return Agreement(
        failed={
            rank: msgspec.convert(verdict["failure"], Failure)
            for rank, verdict in enumerate(verdicts)
            if verdict.get("failure")
        },
        missing=tuple(rank for rank, verdict in enumerate(verdicts) if not verdict or "left" in verdict),
        dead=tuple(dead),
        left_behind={rank: bundle for rank, bundle in dead.items() if bundle},
    )


def _pauses(deadline: float) -> Iterator[None]:
    """One turn, then a longer and longer sleep before each next one, until the deadline."""
    pause = _FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        yield
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


_joining = threading.Lock()
_joined: WeakKeyDictionary[Any, Ranks | None] = WeakKeyDictionary()
