"""Hunt on other machines, through anything with the interface of `concurrent.futures.Executor`.

A share of a hunt is a hunt of its own on the machine that takes it: some hundred seeds, in a directory that
is removed afterwards, in a process with all that isolates programs at home (`loop.py`). It comes with the
bundles from which programs are made, and returns what was judged and the files of what failed. The directory
of the hunt, its log, its corpus and its buckets stay where the command runs, and failures are sorted there
meanwhile. A share that is lost with its machine has logged nothing: its seeds are judged by another.
"""

from __future__ import annotations

import hashlib
import math
import platform
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id, seal_again
from torchrepro.bundle.read import MANIFEST, PARTIAL_SUFFIX, check_member_name
from torchrepro.engine.processes.child import OnMessage
from torchrepro.engine.processes.limits import end_leftovers, owned_directory, usable_cores
from torchrepro.engine.remote.messages import Blob, require_versions, versions_here
from torchrepro.engine.remote.relay import workers_of
from torchrepro.engine.search.process import BY_USER, TIME_IS_UP
from torchrepro.hunt.directory import About, HuntDirectory, Judged, Tally
from torchrepro.hunt.hunt import Hunting, OtherTorch, Searched, begin, hunt
from torchrepro.hunt.seeds import NewSeeds, generator_of
from torchrepro.hunt.settings import Hunted, HuntSettings
from torchrepro.nouns.errors import TorchReproError

_BATCHES = 8
"""In a share: so many compilations that starting a process costs little beside them."""
_START_SECONDS = 15.0
"""Until a share judges its first program."""
_POLL_SECONDS = 0.5
_SECONDS_BETWEEN_REPORTS = 5.0


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a hunt, for any machine."""

    settings: HuntSettings
    """With the seeds."""
    about: About
    """The hunt that it belongs to, and so its torch."""
    other: OtherTorch
    versions: Mapping[str, str]
    """Of the driver, which the machine has to have too."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """What a share has found."""

    judged: tuple[Judged, ...]
    failing: str
    """Where failing programs were, on the machine that judged them."""
    files: Mapping[str, bytes]
    """The files there, by their paths in it."""


def hunt_share(share: Share, sources: Blob) -> Harvest:
    """Hunt a share in a process of this machine, and wait for it."""
    with owned_directory("torchrepro-share-") as place:
        directory = HuntDirectory(place / "hunt")
        directory.path.mkdir()
        try:
            require_versions(share.versions)
            directory.write(share.about)
            unpack(msgspec.msgpack.decode(sources.content, type=dict[str, bytes]), directory.sources)
            _seal(directory.sources)
            hunt(directory.path, replace(share.settings, neighbours=usable_cores()), other=share.other)
        except TorchReproError as exc:
            raise TorchReproError(f"on {platform.node()}: {exc.fact}", next_step=exc.next_step) from exc
        return Harvest(tuple(directory.judged()), str(directory.failing), packed(directory.failing))


def packed(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory by their paths in it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def unpack(files: Mapping[str, bytes], directory: Path) -> None:
    """Write files to paths in a directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        check_member_name(name)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _seal(directory: Path) -> None:
    """Make the bundles in a directory the user's own on this machine: they come from another of theirs."""
    for manifest in directory.rglob(MANIFEST):
        seal_again(manifest.parent)


def take(harvest: Harvest, directory: HuntDirectory) -> None:
    """Add what a share has found to a hunt. Its bundles are the user's own, as if judged here.

    Each program is there whole before it is logged, so a kill in between costs that share.
    """
    programs = sorted({name.partition("/")[0] for name in harvest.files})
    for program in programs:
        partial = directory.failing / f".{program}.{new_run_id()}{PARTIAL_SUFFIX}"
        inside = {n.partition("/")[2]: c for n, c in harvest.files.items() if n.partition("/")[0] == program}
        unpack(inside, partial)
        _seal(partial)
        shutil.rmtree(directory.failing / program, ignore_errors=True)
        partial.rename(directory.failing / program)
    here = str(directory.failing)
    judged = [
        replace(
            each,
            bundle=each.bundle.replace(harvest.failing, here),
            not_saved=each.not_saved.replace(harvest.failing, here),
        )
        for each in harvest.judged
    ]
    directory.append(judged)
    directory.keep(judged)


def hunt_in_shares(
    out: Path,
    settings: HuntSettings,
    executor: Executor,
    *,
    seed: int | None = None,
    other: OtherTorch | None = None,
    on_message: OnMessage = lambda message: None,
) -> Hunted:
    """Do what `hunt` does, with shares on an executor, `settings.jobs` at a time.

    Ctrl-C ends it with the shares that have finished.
    """
    with begin(out, settings, seed=seed, other=other) as hunting:
        shared = _Shared(hunting, executor, on_message)
        prepared = hunting.search(replace(hunting.settings, programs=0, sort_seconds=0), on_message)
        began = time.monotonic()
        stopped = shared.run()
        return hunting.hunted(Searched(stopped, time.monotonic() - began, prepared.notes))


@dataclass(eq=False)
class _Shared:
    hunting: Hunting
    executor: Executor
    on_message: OnMessage
    running: set[Future[Harvest]] = field(default_factory=set)
    sorting: Future[object] | None = None
    given_up: set[str] = field(default_factory=set)
    """Failures that could not be sorted."""
    reported: float = 0.0

    def __post_init__(self) -> None:
        self.directory, self.settings = self.hunting.directory, self.hunting.settings
        self.tally = Tally.of(self.directory.judged())
        self.known_before = frozenset(self.tally.buckets)
        self.judged_before = self.tally.programs
        self.seeds = NewSeeds(self.settings, frozenset(self.tally.seen))
        self.workers = self.settings.jobs or workers_of(self.executor)

    def run(self) -> str:
        """Keep the executor busy until enough was found; return why it stopped early, or nothing."""
        self.began = time.monotonic()
        content = msgspec.msgpack.encode(packed(self.directory.sources))
        sources = Blob(hashlib.sha256(content).hexdigest(), content)
        with ThreadPoolExecutor(1, "sort") as sorter:
            try:
                while not self.tally.has_enough(self.settings.until_new, self.known_before):
                    while len(self.running) < self.workers and (share := self._next()) is not None:
                        self.running.add(self.executor.submit(hunt_share, share, sources))
                    self._sort(sorter)
                    if not self.running and self.sorting is None:
                        return TIME_IS_UP if self._left() <= 0 else ""
                    self._wait()
            except KeyboardInterrupt:
                return BY_USER
            finally:
                for future in self.running:
                    future.cancel()
                if self.sorting is not None:
                    end_leftovers(self.directory.mark)  # the thread of the sorter waits for it
        return ""

    def _left(self) -> float:
        """Return the seconds that are left."""
        limit = self.settings.seconds
        return math.inf if limit is None else limit - (time.monotonic() - self.began)

    def _next(self) -> Share | None:
        """Return the next share; None if there are no seeds, or no time, for another one."""
        seconds = self._left() - _START_SECONDS
        if seconds <= 0:
            return None
        chosen = [seed for _ in range(self._batches()) for seed in self.seeds.take()]
        if not chosen:
            return None
        settings = replace(
            self.settings,
            seconds=None if math.isinf(seconds) else seconds,
            programs=None,
            until_new=None,
            seeds=tuple(chosen),
            generators=tuple(dict.fromkeys(generator_of(seed).name for seed in chosen)),
            corpora=(),  # among the sources
            jobs=1,
            sort_seconds=0,
        )
        about, other = self.directory.known, self.hunting.other
        assert about is not None, "the hunt has begun"
        versions = versions_here()
        if other.chosen:
            del versions["torch"]
        return Share(settings, about, other, versions)

    def _batches(self) -> int:
        """Return how many batches a share has: fewer, where there are not enough for all workers."""
        count = self.settings.programs if self.settings.seeds is None else len(self.settings.seeds)
        if count is None:
            return _BATCHES
        return max(1, min(_BATCHES, count // (self.settings.batch * self.workers)))

    def _sort(self, sorter: ThreadPoolExecutor) -> None:
        """Let the process of the hunt here sort what has failed so far, if it is not at work."""
        unsorted = {each.seed for each in self.tally.unsorted} - self.given_up
        seconds = self._left()
        if self.sorting is not None or not unsorted or self.settings.sort_seconds <= 0 or seconds <= 0:
            return
        self.given_up |= unsorted  # asked about once in this run
        limit = None if math.isinf(seconds) else seconds
        settings = replace(self.settings, programs=0, seconds=limit)
        self.sorting = sorter.submit(self.hunting.search, settings)

    def _wait(self) -> None:
        """Wait a moment; take what has ended."""
        pending: set[Future[Any]] = {*self.running, *([self.sorting] if self.sorting else [])}
        done, _ = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        ended = self.running & done
        self.running -= ended
        for future in sorted(ended, key=lambda one: one.exception() is not None):  # what was found is kept
            take(future.result(), self.directory)
        if self.sorting is not None and self.sorting in done:
            self.sorting.result()
            self.sorting = None
        now = time.monotonic()
        if done:
            self.tally = Tally.of(self.directory.judged())
        if now - self.reported >= _SECONDS_BETWEEN_REPORTS:
            self.reported = now
            self.on_message({"step": self.tally.status(now - self.began, self.judged_before)})
