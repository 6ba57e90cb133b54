"""Run a bundle or a script under the settings of a series until every change found is between neighbours.

Each run is a fresh process with fresh compile caches. What is reported as the side of a change was run twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torchrepro.bisect.bisected import Bisected, Changed, Row, State
from torchrepro.bisect.installers import Stopped, installer_for, stopping
from torchrepro.bisect.runs import RECORDED, KeptRuns, Observation, Task, observe
from torchrepro.bisect.search import Change, changes_in, next_places
from torchrepro.bisect.series import Series, Wanted
from torchrepro.bundle.archive import write_in_one_step
from torchrepro.bundle.manifest import Manifest, devices_of
from torchrepro.bundle.read import file_digest, read_manifest, require_complete
from torchrepro.engine.generated_code import diff_of_code
from torchrepro.engine.other_python import end_replays
from torchrepro.engine.processes.fresh_process import cache_directory
from torchrepro.engine.processes.limits import usable_cores
from torchrepro.engine.remote.carried import submit_with
from torchrepro.engine.remote.relay import workers_of
from torchrepro.engine.search.run_directory import Identity, place_for, write_json
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.sections import counted

_FLAKY = "flaky"
_MOST_JOBS = 4
"""More installations at a time would only share the network and the disk."""
_POLL_SECONDS = 0.2
_TWICE = 2
_SAME_CODE = "the same; the change is in what it calls (headers, libraries) or in eager"
_ACCELERATORS = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BisectSettings:
    """How a series is run."""

    every: bool = False
    """Run every setting, also those between two of the same state."""
    jobs: int | None = None
    time_limit: float | None = None
    trusted: tuple[str, ...] = ()
    fresh: bool = False
    """Run again what earlier commands have run."""
    out: Path | None = None


def bisect(
    target: Path,
    wanted: Wanted,
    settings: BisectSettings | None = None,
    *,
    executor: Executor | None = None,
    on_step: OnStep = lambda step: None,
) -> Bisected:
    """Return where in a series the failure of a bundle or a script comes and goes.

    Ctrl-C ends it with what is known; the same command continues. `executor` runs what a local pool of
    threads would, on other machines for example.
    """
    settings = settings or BisectSettings()
    manifest = _manifest_of(target)
    devices = bool(devices_of(manifest)) if manifest is not None else any(map(os.path.exists, _ACCELERATORS))
    base = wanted.pythons[0] if wanted.pythons else None
    series = wanted.series(devices=devices, versions=partial(versions_of_torch, wanted, base))
    directory, elsewhere = place_for(settings.out, target.absolute().with_name(f"{target.name}.bisected"))
    kept = KeptRuns(_identity(target, manifest, settings))
    if settings.fresh:
        kept.forget()
    run = _Run(target, manifest, series, settings, kept, on_step)
    stopped = run.until_known(executor)
    found = run.bisected(stopped, str(directory))
    found = replace(found, notes=(*([elsewhere] if elsewhere else []), *found.notes))
    for number, change in enumerate(found.changes, start=1):
        if change.code:
            write_in_one_step(directory / f"change-{number}.diff", change.code + "\n")
    write_json(directory / "result.json", found.to_dict())
    return found


class _Run:
    """What is known of each setting, and what is under way."""

    def __init__(
        self,
        target: Path,
        manifest: Manifest | None,
        series: Series,
        settings: BisectSettings,
        kept: KeptRuns,
        on_step: OnStep,
    ) -> None:
        self._target, self._manifest, self._series = target, manifest, series
        self._settings, self._kept, self._on_step = settings, kept, on_step
        self._seen: dict[int, list[Observation]] = {}
        self._unrepeated: set[int] = set()
        """Places that ran once and could not run a second time."""
        self._doing: dict[int, str] = {}
        recorded = series.place_of(manifest.environment.torch) if manifest is not None else None
        self._first = () if recorded is None else (recorded,)
        if any(setting.recipe is None for setting in series.settings):
            on_step("asking the interpreters for their torch")
        for place, setting in enumerate(series.settings):
            earlier = kept.of(setting)[:_TWICE]
            if earlier:
                self._seen[place] = earlier

    def until_known(self, executor: Executor | None) -> str:
        """Run what the search asks for, several at a time; return why it stopped early, or nothing."""
        usual = min(usable_cores(), _MOST_JOBS) if executor is None else workers_of(executor)
        jobs = self._settings.jobs or min(usual, len(self._series.settings))
        pool = executor or ThreadPoolExecutor(jobs, thread_name_prefix="bisect")
        running: dict[Future[Observation], int] = {}
        try:
            while True:
                for place in self._wanted(set(running.values()), jobs - len(running)):
                    running[self._start(pool, place, local=executor is None)] = place
                if not running:
                    return ""
                done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(running.pop(future), future.result())
        except KeyboardInterrupt:
            return "interrupted; the same command continues"
        finally:
            for future in running:
                future.cancel()
            if executor is None:
                stopping.set()
                while running and wait(running, timeout=_POLL_SECONDS).not_done:
                    end_replays()  # one may just have been started
                pool.shutdown()
                stopping.clear()
            # A run may have ended while the others were being stopped: it is kept too.
            for future, place in running.items():
                with suppress(Exception, Stopped):
                    if future.done() and not future.cancelled() and not future.result().cannot_run:
                        self._take(place, future.result())

    def bisected(self, stopped: str, directory: str) -> Bisected:
        """Return the answer as far as it is known."""
        reference = self._reference()
        rows = tuple(self._row(place, reference) for place in range(len(self._series.settings)))
        changes = tuple(self._changed(change, rows) for change in changes_in(self._states()))
        notes = dict.fromkeys(note for runs in self._seen.values() for seen in runs for note in seen.notes)
        made = [row for row in rows if row.made_in]
        if made:
            size = sum(row.megabytes for row in made) / 1024
            place = cache_directory() / "environments"
            notes[f"kept: {counted(len(made), 'environment')}, {size:.1f} GB, in {place}"] = None
        if not stopped and any(row.state is State.NOT_RUN for row in rows):
            notes["not run: versions between two of the same state; --all runs them too"] = None
        return Bisected(
            str(self._target), self._series.axis, rows, changes, reference, stopped, directory, tuple(notes)
        )

    def _states(self) -> Mapping[int, str | None]:
        return {place: _state(runs) for place, runs in self._seen.items()}

    def _wanted(self, running: set[int], free: int) -> list[int]:
        """Return the places to start now: those that the search asks for, then second runs of sides."""
        every = self._settings.every or not self._series.is_range
        states = self._states()
        asked = next_places(
            states, len(self._series.settings), running=running, first=self._first, every=every
        )
        places = [place for place, _ in zip(asked, range(free), strict=False)]
        if not places and not running:
            sides = {side for change in changes_in(states) for side in (change.before, change.after)}
            places = sorted(place for place in sides - self._unrepeated if len(self._seen[place]) < _TWICE)
        return places[:free]

    def _start(self, pool: Executor, place: int, *, local: bool) -> Future[Observation]:
        setting, settings = self._series.settings[place], self._settings
        task = Task(
            self._target.absolute(), self._manifest is None, setting, settings.time_limit, settings.trusted
        )
        self._step(place, "again" if place in self._seen else "starting")
        if local:
            return pool.submit(observe, task, partial(self._step, place))
        return submit_with(pool, observe, task, "target", label=setting.label)

    def _step(self, place: int, doing: str) -> None:
        self._doing[place] = doing
        under_way = dict(sorted(self._doing.items()))
        self._on_step(
            "; ".join(f"{self._series.settings[one].label}: {what}" for one, what in under_way.items())
        )

    def _take(self, place: int, seen: Observation) -> None:
        setting = self._series.settings[place]
        self._kept.keep(setting, seen)
        self._doing.pop(place, None)
        if seen.cannot_run and self._seen.get(place):
            self._unrepeated.add(place)
            return  # it ran before: what keeps it from running now says nothing about torch
        self._seen.setdefault(place, []).append(seen)
        self._on_step(f"{setting.label}: {seen.cannot_run or seen.said} ({seen.seconds:.0f} s)")

    def _reference(self) -> str:
        """Return the signature of the failure that counts: the recorded one, of a script the newest."""
        if self._manifest is not None and self._manifest.expected is not None:
            return str(self._manifest.expected)
        failing = [runs[0].signature for _, runs in sorted(self._seen.items()) if runs[0].signature]
        return failing[-1] if failing else ""

    def _row(self, place: int, reference: str) -> Row:
        label, runs = self._series.settings[place].label, self._seen.get(place, [])
        if not runs:
            return Row(label, State.NOT_RUN)
        word, last = _state(runs), runs[-1]
        if word is None:
            state = State.CANNOT_RUN
        elif word == _FLAKY:
            state = State.FLAKY
        elif last.passes:
            state = State.PASSES
        else:
            state = State.SAME if word in (RECORDED, reference) else State.OTHER
        seen = "; ".join(dict.fromkeys(one.cannot_run or one.said for one in runs))
        return Row(
            label,
            state,
            len(runs),
            last.signature,
            seen,
            last.torch,
            last.commit,
            last.python,
            last.seconds,
            last.made_in,
            last.megabytes,
        )

    def _changed(self, change: Change, rows: tuple[Row, ...]) -> Changed:
        before, after = rows[change.before], rows[change.after]
        codes = [self._seen[place][-1].code.splitlines() for place in (change.before, change.after)]
        names = (before.setting, after.setting)
        diff = "\n".join(diff_of_code(codes[0], codes[1], names)) if all(codes) else ""
        missing = [row.setting for row, code in zip((before, after), codes, strict=True) if not code]
        about = f"none was generated with {' and '.join(missing)}" if missing else "" if diff else _SAME_CODE
        return Changed(
            before,
            after,
            tuple(row.setting for row in rows[change.before + 1 : change.after]),
            all(row.runs >= _TWICE for row in (before, after)),
            diff,
            about,
        )


def _state(runs: list[Observation]) -> str | None:
    words = {run.state for run in runs if run.state is not None}
    if not words:
        return None
    return _FLAKY if len(words) > 1 else words.pop()


def _manifest_of(target: Path) -> Manifest | None:
    """Return what a bundle says of itself; None for a script."""
    if target.suffix == ".py":
        if not target.is_file():
            raise TorchReproError(f"{target} does not exist", next_step="give a bundle or a script")
        return None
    manifest = read_manifest(target)
    require_complete(target, manifest)
    return manifest


def _identity(target: Path, manifest: Manifest | None, settings: BisectSettings) -> dict[str, object]:
    """Return what outcomes depend on, besides the setting: kept runs of another identity do not count."""
    here = (
        Identity.of(target) if manifest is not None else replace(Identity.here(), bundle=file_digest(target))
    )
    limits = {"time_limit": settings.time_limit, "trusted": sorted(settings.trusted)}
    known = (here.bundle, here.torchrepro, here.machine, here.cxx, sorted(here.environ.items()))
    return {"target": [*known], **limits}


def versions_of_torch(wanted: Wanted, python: Path | None, before_release: bool) -> list[str]:
    """Return the versions that the package index has for a Python; `before_release`: nightlies too."""
    installer = installer_for((python or Path(sys.executable)).resolve(), wanted.indexes)
    return installer.versions("torch", before_release=before_release)
