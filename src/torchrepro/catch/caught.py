"""The failures that a watched run has caught: its bundles, `summary.json`, and what a dead process left.

Needs no torch.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.manifest import Manifest, encode_manifest
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.places import GO_ELSEWHERE, elsewhere, errno_of, places_of
from torchrepro.engine.processes.child import Outcome, signal_name
from torchrepro.engine.processes.fresh_process import verdict_of
from torchrepro.engine.search.run_directory import write_json
from torchrepro.nouns.errors import BundleError, TorchReproError
from torchrepro.nouns.sections import counted
from torchrepro.nouns.verdict import Kind, Signature, Stage, Verdict, as_data
from torchrepro.ranks.process import answers

_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Flight:
    """The state of a process: its pid, phase ("compile", "run" or "idle") and the phase's start."""

    pid: int
    phase: str
    since: float

    @property
    def seconds(self) -> float:
        return time.time() - self.since

    @property
    def doing(self) -> str:
        return {"compile": "compiling", "run": "running the compiled function"}.get(self.phase, self.phase)


class FlightRecord:
    """The file with a `Flight`, written with one system call, because every compiled call may write it."""

    def __init__(self, bundle: Path) -> None:
        self._path = _record_of(bundle)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, phase: str) -> None:
        text = msgspec.json.encode(Flight(os.getpid(), phase, time.time()))
        os.pwrite(self._descriptor, text.ljust(_WIDTH), 0)

    def remove(self) -> None:
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


def read_flight(bundle: Path) -> Flight | None:
    """Return the flight record of an unfinished bundle, or None."""
    try:
        return msgspec.json.decode(_record_of(bundle).read_bytes(), type=Flight)
    except (OSError, msgspec.DecodeError):
        return None


def _record_of(bundle: Path) -> Path:
    return bundle.with_name(f".{bundle.name}.flight")


SUMMARY = "summary.json"
UNFINISHED = "-unfinished"
"""Suffix of a bundle that was written before its call; it stays if the process dies in the call."""


@dataclass(frozen=True, slots=True)
class Caught:
    """One failure of a run."""

    path: Path
    verdict: str
    signature: str
    stage: str
    ops: int
    place: str
    summary: str
    missing: tuple[str, ...] = ()
    """What the bundle lacks, so that it cannot be run."""


def caught_in(directory: Path, run_id: str) -> list[Caught]:
    """Return the bundles of a run, oldest first; also those that had to go elsewhere."""
    found = []
    for path in _of_run(directory, f"{run_id}-*"):
        flight = read_flight(path)
        idle = path.name.endswith(UNFINISHED) and (flight is None or flight.phase == "idle")
        manifest = _manifest_of(path) if path.is_dir() and not idle else None
        if manifest is not None:
            expected, verdict = manifest.expected, manifest.verdict or {}
            caught = Caught(
                path=path,
                verdict=expected.kind.value if expected else "unfinished",
                signature=str(expected) if expected else "",
                stage=expected.stage.value if expected else "none",
                ops=manifest.ops,
                place=manifest.place.value,
                summary=str(verdict.get("summary", "")) or "the process ended inside this call",
                missing=manifest.missing,
            )
            found.append(caught)
    return found


def write_summary(directory: Path, run_id: str, **facts: Any) -> Path:
    """Rewrite `summary.json` from the existing bundles, atomically; elsewhere, if the directory refuses it.

    Raises OSError if there is no place for it.
    """
    bundles = [{**asdict(caught), "path": str(caught.path)} for caught in caught_in(directory, run_id)]
    data = {"run_id": run_id, "bundles": bundles, **facts}
    try:
        write_json(directory / SUMMARY, data)
        return directory / SUMMARY
    except OSError:
        other = elsewhere() / SUMMARY
        write_json(other, data)
        return other


@dataclass(frozen=True, slots=True)
class Watched:
    """How much of a program was watched."""

    graphs: int = 0
    checked: int = 0
    """Calls that were compared with eager."""

    def __str__(self) -> str:
        if not self.graphs and not self.checked:
            return "nothing was compiled, so nothing was watched"
        graphs = f" in {counted(self.graphs, 'graph')}" if self.graphs else ""
        checked = f"; {counted(self.checked, 'call')} compared with eager" if self.checked else ""
        return f"nothing failed{graphs}{checked}"


_WATCHED = ".watched"


def leave_watched(directory: Path, run_id: str, watched: Watched) -> None:
    """Leave for the launcher what this process has watched."""
    write_json(directory / f".{run_id}.{os.getpid()}{_WATCHED}", asdict(watched))


def take_watched(directory: Path, run_id: str) -> Watched:
    """Return what all processes of a run have left, and remove it."""
    graphs = checked = 0
    for path in _of_run(directory, f".{run_id}.*{_WATCHED}"):
        with suppress(OSError, msgspec.MsgspecError):
            one = msgspec.json.decode(path.read_bytes(), type=Watched)
            graphs, checked = graphs + one.graphs, checked + one.checked
            path.unlink()
    return Watched(graphs, checked)


def _of_run(directory: Path, pattern: str) -> list[Path]:
    """Return the paths of a run, by their names, which sort by time."""
    found = [path for place in places_of(directory) for path in place.glob(pattern)]
    return sorted(found, key=lambda path: path.name)


_SHOWN = 5


def closing_lines(caught: Sequence[Caught]) -> list[str]:
    """Return lines with each failure, its bundle and the command to minify it; the first failure last.

    Users see the last lines, and the first failure is most often the cause of the others.
    """
    lines = []
    left_out = len(caught) - _SHOWN
    if left_out > 0:
        lines.append(f"torchrepro: {left_out} more failures (summary.json has all)")
    for found in reversed(caught[:_SHOWN]):
        where = f" in {found.stage}" if found.stage != "none" else ""
        lines.append(f"torchrepro: {found.verdict}{where}: {_shortened(found.summary)}")
        lines.append(f"  bundle  {found.path}")
        if found.missing:
            more = f" and {len(found.missing) - 1} more" if len(found.missing) > 1 else ""
            lines.append(f"  kept in part: it lacks {_shortened(found.missing[0])}{more}")
            lines.append(f"  show    torchrepro show --graph {shlex.quote(str(found.path))}")
        else:
            lines.append(f"  minify  torchrepro minify {shlex.quote(str(found.path))}")
    return lines


def _shortened(text: str) -> str:
    first_line = text.partition("\n")[0]
    return first_line if len(first_line) <= _WIDTH else first_line[: _WIDTH - 3] + "..."


_LONG = 2.0
"""Seconds after which a running call is listed in the summary."""
HANG_SECONDS = 10.0
"""Ctrl-C after this many seconds in one call counts as a hang."""


@dataclass(frozen=True, slots=True)
class Death:
    """How the program ended: its exit code as in `subprocess`, and whether a signal interrupted it."""

    pid: int
    exit_code: int
    interrupted: bool = False


class HangWatch:
    """Polls for calls that do not return, and keeps the summary up to date meanwhile.

    A hang is only a mark in the unfinished bundle: if the call does return, the mark is removed, and the
    bundle is removed like others. The summary names long calls in any case, because this process may be
    killed at any moment.
    """

    def __init__(self, directory: Path, run_id: str, seconds: float) -> None:
        self._directory = directory
        self._run_id = run_id
        self._seconds = seconds
        self._summed_up: frozenset[tuple[Path, bool]] = frozenset()

    def look(self) -> None:
        waiting = set()
        for bundle, flight in _unfinished(self._directory, self._run_id):
            manifest = _manifest_of(bundle)
            if manifest is None:
                continue
            hung = flight.phase != "idle" and flight.seconds > self._seconds
            if hung != (manifest.expected is not None):
                _rewrite(bundle, manifest, _hang(flight) if hung else None)
            if flight.phase != "idle" and flight.seconds > _LONG:
                waiting.add((bundle, hung))
        if waiting != self._summed_up:
            self._summed_up = frozenset(waiting)
            write_summary(self._directory, self._run_id)


def finish_unfinished(directory: Path, run_id: str, death: Death) -> None:
    """Turn the unfinished bundles of dead processes into finished ones, or remove them."""
    for bundle, flight in _unfinished(directory, run_id):
        if answers(flight.pid) and flight.pid != death.pid:
            continue
        verdict = _verdict(flight, death)
        if verdict is not None:
            # Imported here because it needs torch; most runs end without a verdict.
            from torchrepro.script.save_bundle import finished

            name = bundle.name.removesuffix(UNFINISHED) + f"-{verdict.kind.value}"
            try:
                finished(bundle, verdict).write(bundle.with_name(name))
            except BundleError as exc:
                # Where nothing can be written, the unfinished bundle stays: it has all but the verdict.
                if errno_of(exc) not in GO_ELSEWHERE:
                    raise
                finished(bundle, verdict).write(elsewhere() / name)
        _record_of(bundle).unlink(missing_ok=True)
        shutil.rmtree(bundle, ignore_errors=True)


def _verdict(flight: Flight, death: Death) -> Verdict | None:
    """Return the verdict derived from a process's death; None if it was not inside a compiled call."""
    if flight.phase == "idle":
        return None
    if death.interrupted:
        return _hang(flight) if flight.seconds > HANG_SECONDS else None
    if flight.pid != death.pid:
        return Verdict(Kind.CRASH, Stage.BACKEND, summary=f"process {flight.pid} died ({flight.doing})")
    if death.exit_code == 0:
        return None  # it exited on purpose, while a thread was inside the call
    code = death.exit_code
    outcome = Outcome(phase=flight.phase, signal=signal_name(code), exit_code=code, seconds=flight.seconds)
    return verdict_of(outcome, 0.0)


def _hang(flight: Flight) -> Verdict:
    outcome = Outcome(phase=flight.phase, timed_out=True, seconds=round(flight.seconds, 1))
    return verdict_of(outcome, round(flight.seconds))


def _unfinished(directory: Path, run_id: str) -> Iterator[tuple[Path, Flight]]:
    for bundle in _of_run(directory, f"{run_id}-*{UNFINISHED}"):
        flight = read_flight(bundle)
        if flight is not None:
            yield bundle, flight


def _manifest_of(bundle: Path) -> Manifest | None:
    try:
        return read_manifest(bundle)
    except TorchReproError:
        return None  # it is just being written, replaced or removed


def _rewrite(bundle: Path, manifest: Manifest, verdict: Verdict | None) -> None:
    changed = msgspec.structs.replace(
        manifest,
        expected=None if verdict is None else Signature.of(verdict),
        verdict=None if verdict is None else as_data(verdict.to_dict()),
    )
    partial = bundle.with_name(f".{bundle.name}.manifest.partial")
    try:
        partial.write_bytes(encode_manifest(changed))
        os.replace(partial, bundle / "manifest.json")
    except OSError:
        return  # the program has just replaced the bundle, or the disk is full; the mark is optional
    finally:
        partial.unlink(missing_ok=True)
