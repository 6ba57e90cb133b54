"""The watch of a run among ranks: every rank reports its outcome before any of them raises.

An *event* is a step at which every rank is expected ("graph 3 compiled"). Ranks that turn out to take
different steps stop waiting for one another there. From then on a rank that fails opens a round on a second
channel, and each of the others reads it at its next event.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import Any

import msgspec

from torchrepro.nouns.errors import RankFailed, say
from torchrepro.ranks.rendezvous import (
    COURTESY_SECONDS,
    Absent,
    PerGroup,
    Rendezvous,
    Table,
    join,
    name_ranks,
)

RUN_ID = "TORCHREPRO_RUN_ID"
_APART = "apart"
"""The channel of ranks that do not take the same steps."""
_BUNDLES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened on a rank, and where its bundle is."""

    summary: str
    bundle: str = ""
    """Empty if none could be written."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The outcome of all ranks. Empty: every rank came and none failed, or no rank could be reached."""

    failed: Mapping[int, Failure] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    """Ranks that did not answer in time."""
    dead: tuple[int, ...] = ()
    """Ranks whose process is gone, without a word of its own."""
    left_behind: Mapping[int, str] = field(default_factory=dict)
    """Bundles that the dead had announced."""

    @property
    def failing(self) -> bool:
        """True if every rank has to stop. A rank that is only missing may be busy elsewhere."""
        return bool(self.failed or self.dead)

    def describe(self) -> str:
        """Return which ranks failed, with what, and where their bundles are: one fact per line."""
        return "\n".join(self._lines())

    def error(self) -> RankFailed:
        """Return the error that a rank raises that has not failed itself."""
        return RankFailed(
            f"{self.describe()}\nthis rank stops here: in its next collective it would wait for them",
            failed=tuple(self.failed),
            dead=self.dead,
        )

    def _lines(self) -> Iterator[str]:
        alike: dict[str, list[int]] = {}
        for rank, failure in self.failed.items():
            alike.setdefault(failure.summary, []).append(rank)
        for summary, ranks in alike.items():
            yield f"{name_ranks(ranks)} failed: {summary}"
            yield from _bundles({rank: self.failed[rank].bundle for rank in ranks})
        if self.dead:
            yield f"{name_ranks(self.dead)} died"
            yield from _bundles(self.left_behind)
        if self.failing and self.missing:
            yield f"{name_ranks(self.missing)} did not answer"


def _bundles(bundles: Mapping[int, str]) -> Iterator[str]:
    written = {rank: path for rank, path in bundles.items() if path}
    for rank, path in list(written.items())[:_BUNDLES_SHOWN]:
        yield f"  bundle of rank {rank}: {path}"
    if len(written) > _BUNDLES_SHOWN:
        yield f"  and {len(written) - _BUNDLES_SHOWN} more"


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank reports at an event."""

    event: str
    failure: Failure | None = None


class Ranks:
    """This process as one rank of a job. Raises nothing: a lost store is an agreement without answers."""

    def __init__(
        self, rendezvous: Rendezvous, *, timeout: float = 60.0, note: Callable[[str], None] = say
    ) -> None:
        self.rank = rendezvous.rank
        self._rendezvous = rendezvous
        self._timeout = timeout
        self._note = note
        self._in_step = True

    @classmethod
    def current(cls, *, timeout: float = 60.0, note: Callable[[str], None] = say) -> Ranks | None:
        """Return the ranks of the default process group as it is now; None without one, or with one rank."""
        return _joined.of(None, lambda group: _join(group, timeout, note))

    def run_id(self, own: str) -> str:
        """Return one name of the run for all ranks: their launcher's, or that of the first caller."""
        return os.environ.get(RUN_ID) or self._rendezvous.first("run_id", own)

    def announce(self, bundle: str) -> None:
        """Record the bundle of this rank for the others, in case its process dies in the next step."""
        self._rendezvous.announce(bundle)

    def agree(self, event: str, failure: Failure | None = None) -> Agreement:
        """Report the outcome of this rank, wait for the others, and return theirs.

        If the agreement is `failing`, every rank raises: this one its own exception if it has one, else
        `agreement.error()`.
        """
        return self._agree(_Word(event, failure), self._timeout)

    def tell(self, failure: Failure) -> Agreement:
        """Report a failure where the others are not expected, and wait only briefly for them to read it."""
        return self._agree(_Word("", failure), self._moment)

    def leave(self) -> None:
        """Report that this rank ends normally, or has destroyed its process group."""
        self._rendezvous.leave(f"{name_ranks([self.rank])} has left the job", ("step", _APART))

    @property
    def _moment(self) -> float:
        return min(self._timeout, COURTESY_SECONDS)

    def _agree(self, word: _Word, timeout: float) -> Agreement:
        if self._in_step:
            table = self._exchange(word, timeout, "step")
            agreement = self._agreement_of(table)
            heard = isinstance(table[self.rank], _Word)  # else the others had timed out on this rank
            if heard or (agreement.failing and word.failure is None):
                return agreement
        if word.failure is None and not self._rendezvous.begun(_APART):
            return Agreement()
        return self._agreement_of(self._exchange(word, self._moment, _APART))

    def _exchange(self, word: _Word, timeout: float, channel: str) -> dict[int, _Word | Absent]:
        text = msgspec.json.encode(word).decode()
        table: Table = self._rendezvous.exchange(text, repr(word.event), timeout, channel)
        return {
            rank: entry if isinstance(entry, Absent) else msgspec.json.decode(entry, type=_Word)
            for rank, entry in table.items()
        }

    def _agreement_of(self, table: Mapping[int, _Word | Absent]) -> Agreement:
        words = {rank: entry for rank, entry in table.items() if isinstance(entry, _Word)}
        absent = {rank: entry for rank, entry in table.items() if isinstance(entry, Absent)}
        dead = {rank: entry.left_behind for rank, entry in absent.items() if entry.dead}
        agreement = Agreement(
            failed={rank: word.failure for rank, word in words.items() if word.failure is not None},
            missing=tuple(rank for rank in absent if rank != self.rank and rank not in dead),
            dead=tuple(dead),
            left_behind={rank: bundle for rank, bundle in dead.items() if bundle},
        )
        if len(absent) > len(dead):
            reason = next(entry.fact for entry in absent.values() if not entry.dead)
            self._stop_waiting("" if agreement.failing else reason)
        elif not agreement.failing and len({word.event for word in words.values()}) > 1:
            places: dict[str, list[int]] = {}
            for rank, word in words.items():
                places.setdefault(word.event, []).append(rank)
            told = ", ".join(f"{name_ranks(ranks)} at {event!r}" for event, ranks in places.items())
            self._stop_waiting(f"the ranks are out of step: {told}")
        return agreement

    def _stop_waiting(self, reason: str) -> None:
        if self._in_step and reason:
            self._note(f"{reason}; {name_ranks([self.rank])} no longer waits for the others at such events")
        self._in_step = False


def _join(group: Any, timeout: float, note: Callable[[str], None]) -> Ranks | None:
    """Register this process with the other ranks of the group, until the group or the process ends."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:  # a data loader's worker is the child of a rank
        return None
    try:
        rendezvous = join(group, "watch")
    except Exception as exc:
        note(f"the ranks of this job cannot tell one another of failures: no store ({exc})")
        return None
    if rendezvous is None:
        return None
    ranks = Ranks(rendezvous, timeout=timeout, note=note)
    # Not `atexit`, which the children that multiprocessing forks never run.
    Finalize(group, ranks.leave, exitpriority=0)
    return ranks


_joined: PerGroup[Ranks] = PerGroup()
