"""The session of a watching process: where bundles go, and what was caught; it never breaks the program.

An error of the watch is written to a file and reported in one line; the user's program continues as if it
were not watched.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.caught import (
    UNFINISHED,
    Watched,
    caught_in,
    closing_lines,
    leave_watched,
    write_summary,
)
from torchrepro.catch.places import GO_ELSEWHERE, OUT_OF_DESCRIPTORS, Reserve, elsewhere, errno_of
from torchrepro.catch.settings import LAUNCHED, WatchSettings
from torchrepro.execute.record_graphs import Origins
from torchrepro.graph_text.printer import GraphText
from torchrepro.nouns.errors import BundleError, TorchReproError, in_a_line, say
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.ranks.agreement import Failure, Ranks
from torchrepro.script.save_bundle import Members, bundle_members, write_what_can_be
from torchrepro.torch_api.modes import no_saved_tensors_hooks

if TYPE_CHECKING:
    from torchrepro.catch.search_here import SearchHere, Standby

_lock = threading.Lock()
_checks = 0


def is_checking() -> bool:
    """Return whether a check is under way, in which nothing is watched."""
    return _checks > 0


@contextmanager
def looking_away() -> Iterator[None]:
    """Suspend the watch in the body, for a check of torchrepro itself.

    The user's saved-tensor hooks are not called either, because checkpointing counts the calls. No others
    take their place: `torch.func.grad` refuses to run inside any.
    """
    global _checks
    with _lock:
        _checks += 1
    try:
        with no_saved_tensors_hooks():
            yield
    finally:
        with _lock:
            _checks -= 1


_sessions: list[Session] = []
_at_exit: list[Session] = []


def current_session() -> Session | None:
    """Return the session of the innermost `watch` or latest `enable`."""
    return _sessions[-1] if _sessions else None


def open_session(settings: WatchSettings, *, current: bool = False) -> Session:
    """Open a session that ends with the process at the latest; `current`: it watches every compilation."""
    session = Session(settings)
    if not _at_exit:
        atexit.register(_finish)
    _at_exit.append(session)
    if current:
        _sessions.append(session)
    return session


def disable(session: Session | None = None) -> None:
    """Stop watching, also what is compiled already; without a session, stop that of the latest `enable`."""
    session = session or current_session()
    if session in _sessions:
        _sessions.remove(session)
        session.end()


def stop_watching() -> None:
    """Watch nothing in this process, which was forked for a search."""
    for session in _at_exit:
        session.active = False
    _sessions.clear()


def _finish() -> None:
    """Clean up at exit, and print what was caught."""
    for session in _at_exit:
        session.end()
        if session.kept and session.pid == os.getpid() and LAUNCHED not in os.environ:
            lines = closing_lines(caught_in(session.directory, session.run_id))
            print("\n".join(lines), file=sys.stderr)


T = TypeVar("T")

_COMPLAINTS = 100
"""Errors of the watch whose details are written to its file."""
CHECKPOINT_CAP = 1 << 20
"""Bytes of tensors in a bundle at level 1: small tensors are exact, large ones are recipes."""


class Session:
    """One watch of one process. Forked children continue with a copy, and write bundles of other names."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.run_id = settings.run_id or new_run_id()
        self.directory = settings.directory
        self.label = ""
        """Prefix that distinguishes the bundles of one rank from those of another."""
        self.active = True
        self.pid = os.getpid()
        self.started = time.monotonic()
        self.checking_seconds = 0.0
        self.graphs = 0
        """How many graphs were watched so far: the same on ranks that do the same."""
        self.checked = 0
        """How many calls were compared with eager."""
        self.origins = Origins()
        self.kept: list[Path] = []
        self._seen: set[tuple[str, Signature]] = set()
        self._lock = threading.RLock()
        self._complaints = 0
        self._reserve = Reserve()
        self.searched: SearchHere | None = None
        """The search for the cause of the first failure."""
        self._standby: Standby | None = None
        self.endings: list[Callable[[], None]] = []
        """Callbacks for the end of the session."""

    def end(self) -> None:
        """End the session and remove unfinished bundles."""
        self.active = False
        if self.pid == os.getpid():
            if self.searched is not None:
                self.searched.wait()
            elif self._standby is not None:
                self._standby.end()
            launched = LAUNCHED in os.environ and self.run_id == self.settings.run_id
            if launched and (self.graphs or self.checked):
                with suppress(OSError):  # the program's end does not depend on it
                    leave_watched(self.directory, self.run_id, Watched(self.graphs, self.checked))
        self._clean_up()

    def continue_in(self, directory: Path) -> None:
        """Keep what fails from now on in another directory, as a new session would: for the next test.

        Functions that were compiled before stay watched, which they would not be by another session.
        """
        if self.searched is not None:
            self.searched.wait()
            self._standby = None  # the search has ended it
        self._clean_up()
        with self._lock:
            self.directory, self.searched = directory, None
            self.kept, self._seen = [], set()

    def _clean_up(self) -> None:
        for ending in self.endings:
            self.shielded("clean up", ending)
        self.endings.clear()

    def keep(self, repro: Repro, verdict: Verdict, key: str) -> Path | None:
        """Save a bundle for a failure, unless the same graph failed in the same way before.

        What cannot be kept of it is named in the bundle. Raises if nothing can be saved; callers use
        `shielded`.
        """

        def save(path: Path) -> Path:
            written, plain = write_what_can_be(repro)
            return self.members(plain, verdict, written).write(path)

        return self.keep_as(save, verdict, key)

    def members(self, repro: Repro, verdict: Verdict, written: GraphText) -> Members:
        """Return the files of a bundle for a failure."""
        level_1 = self.settings.level == 1
        cap = min(CHECKPOINT_CAP, self.settings.size_cap) if level_1 else self.settings.size_cap
        found = replace(repro, expected=Signature.of(verdict))
        return bundle_members(found, verdict, size_cap=cap, run_id=self.run_id, written=written)

    def keep_as(self, save: Callable[[Path], Path], verdict: Verdict, key: str) -> Path | None:
        """Call `save` to write a bundle, unless the same graph failed in the same way before."""
        signature = Signature.of(verdict)
        with self._lock:
            if (key, signature) in self._seen or len(self.kept) >= self.settings.limit:
                return None
            self._seen.add((key, signature))
            path = self._with_reserve(lambda: self.under_free_name(f"-{verdict.kind.value}", save))
            self.kept.append(path)
            # The bundle does not need it, and `torchrepro run` writes it again at the end.
            with suppress(OSError):
                write_summary(self.directory, self.run_id)
            return path

    def drop(self, bundle: Path) -> None:
        """Remove a bundle that was kept: the failure is not the compiler's."""
        with self._lock:
            self.kept.remove(bundle)
            shutil.rmtree(bundle, ignore_errors=True)
            write_summary(self.directory, self.run_id)

    def stand_by(self) -> None:
        """Start the search process for failures on a device, unless there is one."""
        if self._verbs and self._standby is None and self.searched is None:
            from torchrepro.catch.search_here import Standby

            self._standby = Standby()

    def search(self, bundle: Path | None) -> None:
        """Minify or locate a failure as the settings say, unless another one is being searched already."""
        if not self._verbs or bundle is None or self.searched is not None or read_manifest(bundle).missing:
            return
        from torchrepro.catch.search_here import SearchHere

        self.searched = SearchHere(bundle, self._verbs, self._standby, explain=self.settings.explain)
        if not self.settings.go_on:
            self.searched.wait()

    @property
    def _verbs(self) -> tuple[str, ...]:
        return tuple(verb for verb in ("minify", "locate") if getattr(self.settings, verb))

    def _with_reserve(self, work: Callable[[], T]) -> T:
        """Run work that needs file descriptors; once more, with those in reserve, if there are no others."""
        try:
            return work()
        except Exception as exc:
            if errno_of(exc) not in OUT_OF_DESCRIPTORS or not self._reserve.release():
                raise
            try:
                return work()
            finally:
                self._reserve.refill()

    def under_free_name(self, ending: str, save: Callable[[Path], Path]) -> Path:
        """Save under the next free name; in the temporary directory if `out` is not writable, or full."""
        try:
            return self._numbered(ending, save)
        except (BundleError, OSError) as exc:
            number = errno_of(exc)
            if number not in GO_ELSEWHERE or self.directory == (other := elsewhere()):
                raise
            say(f"{self.directory} cannot be written to ({os.strerror(number or 0)}); bundles go to {other}")
            self.directory = other
            return self._numbered(ending, save)

    def _numbered(self, ending: str, save: Callable[[Path], Path]) -> Path:
        for number in range(10_000):
            path = self.directory / f"{self.run_id}-{self.label}{number}{ending}"
            taken = any(self.directory.glob(f"{self.run_id}-{self.label}{number}-*"))
            if not taken or (ending == UNFINISHED and not path.exists()):
                try:
                    return save(path)
                except BundleError:
                    if not path.exists():
                        raise
        raise TorchReproError(f"{self.directory} is full of bundles of this run", next_step="clear it out")

    def join_ranks(self) -> None:
        """Put the bundles of all ranks under one run id, with the number of the rank in their names."""
        ranks = self._ranks()
        if ranks is not None:
            self.run_id, self.label = ranks.run_id(self.run_id), f"rank{ranks.rank}-"

    def announce_unfinished(self, bundle: Path) -> None:
        """Announce to the other ranks which bundle to name if this rank dies now.

        Not under a launcher, which finishes the bundle under another name.
        """
        ranks = None if LAUNCHED in os.environ else self._ranks()
        if ranks is not None:
            ranks.announce(str(bundle))

    def keep_step(self, event: str) -> None:
        """Wait until the other ranks get here too. Raises `RankFailed` if one has failed or died."""
        ranks = self._ranks()
        if ranks is not None:
            agreement = ranks.agree(event)
            if agreement.failing:
                raise agreement.error()

    def tell_ranks(self, verdict: Verdict, bundle: Path | None, event: str = "") -> None:
        """Announce a failure to the other ranks before it is raised; wait for them only with an event."""
        ranks = self._ranks()
        if ranks is None:
            return
        failure = Failure(str(verdict).partition("\n")[0], str(bundle or ""))
        if event:
            ranks.agree(event, failure)
        else:
            ranks.tell(failure)

    def _ranks(self) -> Ranks | None:
        return Ranks.current(timeout=self.settings.rank_timeout)

    def shielded(self, what: str, work: Callable[[], T | None], *, from_interrupts: bool = False) -> T | None:
        """Run work of the watch; if it fails, report it once, write the details to a file, and return None.

        `from_interrupts`: also catch Ctrl-C, which must not replace the user's exception in flight.
        """
        try:
            return work()
        except Exception as exc:
            self._complain(what, exc)
        except BaseException:
            if not from_interrupts:
                raise
            say(f"interrupted while trying to {what}")
        return None

    def _complain(self, what: str, exc: Exception) -> None:
        details = f"while trying to {what}:\n{''.join(traceback.format_exception(exc))}\n"
        with self._lock:
            first, self._complaints = not self._complaints, self._complaints + 1
            if self._complaints > _COMPLAINTS:
                return  # a call that is made a million times must not fill the disk
            where = ""
            for directory in (self.directory, Path(tempfile.gettempdir())):
                log = directory / f"{self.run_id}.{os.getpid()}.log"
                with suppress(OSError):
                    directory.mkdir(parents=True, exist_ok=True)
                    with log.open("a") as file:
                        file.write(details)
                    where = f"; details: {log}"
                    break
        if first:
            say(f"could not {what} ({in_a_line(exc)}); the program continues{where}")


class Sampler:
    """Decides which calls of a graph are checked at level 4: every n-th, the first n, a share of the time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls = 0
        self._checked = 0
        self._last_cost = 0.0

    def take(self) -> bool:
        """Return whether to check this call."""
        settings = self._session.settings
        due = self._calls % settings.every == 0
        self._calls += 1
        if not due or (settings.first is not None and self._checked >= settings.first):
            return False
        if settings.budget is not None:
            elapsed = time.monotonic() - self._session.started
            if self._session.checking_seconds + self._last_cost > settings.budget * elapsed:
                return False
        self._checked += 1
        self._session.checked += 1
        return True

    def spent(self, seconds: float) -> None:
        self._last_cost = seconds
        self._session.checking_seconds += seconds
