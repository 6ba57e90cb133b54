"""What a process leaves behind when it dies or hangs inside a compiled call, made into a finished bundle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchrepro.bundle.manifest import Manifest, encode_manifest
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.crash_record import Flight, forget_flight, read_flight
from torchrepro.catch.summary import UNFINISHED, write_summary
from torchrepro.engine.processes.fresh_process import verdict_of
from torchrepro.engine.processes.reports import Outcome, signal_name
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.plain import as_data
from torchrepro.nouns.signature import Signature
from torchrepro.nouns.verdict import Kind, Stage, Verdict
from torchrepro.ranks.process import answers

_LONG = 2.0
"""Seconds after which a call is worth a line in the summary while it lasts."""
_GIVEN_UP = 10.0
"""Seconds in one call after which who interrupts the program has given up waiting for it."""


@dataclass(frozen=True, slots=True)
class Death:
    """How the program ended: its exit code as `subprocess` has it, and whether somebody asked for it."""

    pid: int
    exit_code: int
    interrupted: bool = False


class HangWatch:
    """Looks now and then for calls that do not come back, and keeps the summary up to date meanwhile.

    A hang is only a mark in the unfinished bundle: if the call does come back, it is taken away, and the
    bundle goes as others do. The summary names long calls in any case: who watches may be killed at any
    moment.
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
            # Here and not above: it needs torch, which most programs let us do without.
            from torchrepro.script.save_bundle import finish_bundle

            target = bundle.with_name(bundle.name.removesuffix(UNFINISHED) + f"-{verdict.kind.value}")
            finish_bundle(bundle, target, verdict)
        forget_flight(bundle)
        shutil.rmtree(bundle, ignore_errors=True)


def _verdict(flight: Flight, death: Death) -> Verdict | None:
    """What the death of a process amounts to; None if it had nothing to do with a compiled call."""
    if flight.phase == "idle":
        return None
    if death.interrupted:
        return _hang(flight) if flight.seconds > _GIVEN_UP else None
    if flight.pid != death.pid:
        doing = {"compile": "compiling", "run": "running the compiled function"}.get(flight.phase, "")
        return Verdict(Kind.CRASH, Stage.BACKEND, summary=f"process {flight.pid} died ({doing})")
    if death.exit_code == 0:
        return None  # it left on purpose, a thread of it inside the call
    outcome = Outcome(
        phase=flight.phase,
        signal=signal_name(death.exit_code),
        exit_code=death.exit_code,
        seconds=flight.seconds,
    )
    return verdict_of(outcome, 0.0)


def _hang(flight: Flight) -> Verdict:
    doing = {"compile": "compiling", "run": "running the compiled function"}.get(flight.phase, flight.phase)
    return Verdict(
        Kind.HANG,
        Stage.BACKEND,
        summary=f"no end after {flight.seconds:.0f} s ({doing})",
        seconds=round(flight.seconds, 1),
    )


def _unfinished(directory: Path, run_id: str) -> Iterator[tuple[Path, Flight]]:
    for bundle in sorted(directory.glob(f"{run_id}-*{UNFINISHED}")):
        flight = read_flight(bundle)
        if flight is not None:
            yield bundle, flight


def _manifest_of(bundle: Path) -> Manifest | None:
    try:
        return read_manifest(bundle)
    except TorchReproError:
        return None  # the program has just replaced it


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
        return  # the program has just replaced the bundle, or the disk is full: the mark is a courtesy
    finally:
        partial.unlink(missing_ok=True)
