"""Catch what fails in a target: run the program watched, or compare the function's model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.archive import new_run_id
from torchrepro.catch.launcher import Ended, run_program
from torchrepro.catch.settings import WatchSettings
from torchrepro.catch.target import Target
from torchrepro.engine.check_bundle import OnPhase
from torchrepro.engine.compare_model import compare_model, save_whole_call
from torchrepro.engine.search.run_directory import CAUGHT, place_for
from torchrepro.nouns.errors import DoesNotFail
from torchrepro.nouns.repro import ModelRequest

_CATCH_ALL = 4
"""The level that catches exceptions, crashes, hangs and wrong numbers."""


@dataclass(frozen=True, slots=True)
class CaughtBundle:
    """The bundle of a target."""

    bundle: Path
    directory: Path | None = None
    """The directory of the caught bundles; None: the target is a bundle."""
    notes: tuple[str, ...] = ()


def catch_target(
    request: ModelRequest,
    *,
    out: Path | None,
    default_for: Callable[[Path], Path],
    fresh: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> CaughtBundle:
    """Return the bundle of a target, in `out` or in the directory that `default_for` derives from its path.

    A directory that was made for it does not stay empty.
    """
    target = Target.parse(request.target)
    target.require_fitting(request)
    if target.is_bundle:
        return CaughtBundle(Path(request.target))
    users_own = out is not None and out.exists()
    directory, elsewhere = place_for(out, default_for(target.path))
    try:
        bundle = None if fresh else target.caught_before(directory, request)
        if bundle is not None:
            notes = [f"this is what {target.file} left before; --fresh runs it again"]
        elif target.is_program and target.file is not None:
            bundle, notes = _catch_in_program(target.file, directory / CAUGHT)
        else:
            bundle, notes = _catch_in_function(request, directory / CAUGHT, on_phase)
    except BaseException:
        if not users_own:
            with suppress(OSError):  # it is not empty
                directory.rmdir()
        raise
    target.remember(bundle, directory, request)
    return CaughtBundle(bundle, directory, (*([elsewhere] if elsewhere else []), *notes))


def _catch_in_program(file: Path, out: Path) -> tuple[Path, list[str]]:
    """Take the first failure of a program: it is most often the cause of the others."""
    ended = _run_until_caught(file, out)
    if not ended.caught:
        raise DoesNotFail(
            f"{file}: {ended.watched} (its exit code was {ended.exit_code})",
            next_step="run it where it fails, or see what torchrepro run can catch",
        )
    first, *others = ended.caught
    notes = [f"the first failure of {file}: {first.path}"]
    return first.path, [*notes, *(f"ignored: {other.path} ({other.signature})" for other in others)]


def _run_until_caught(file: Path, out: Path) -> Ended:
    """Run a program watched; if no graph of it fails, run it again with its whole calls compared.

    The first run misses a failure of capture itself, because it compares only graphs.
    """
    for whole in (False, True):
        settings = WatchSettings(level=_CATCH_ALL, out=out, run_id=new_run_id(), whole=whole)
        with _standard_output_to_error():
            ended = run_program([str(file)], settings)
        if ended.caught:
            break
    return ended


@contextmanager
def _standard_output_to_error() -> Iterator[None]:
    """Send the program's standard output to standard error, which keeps ours clean."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _catch_in_function(request: ModelRequest, out: Path, on_phase: OnPhase) -> tuple[Path, list[str]]:
    """Compare a function's model with its compiled self, and save the failing graph, or the whole call."""
    compared = compare_model(request, save_to=out, on_phase=on_phase)
    compared.verdict.require_testable()
    if not compared.verdict.fails:
        raise DoesNotFail(
            f"it does not fail here: {compared.verdict}",
            next_step="run it where it fails, or see what else torchrepro compare can vary",
        )
    if compared.bundle is not None:
        return compared.bundle, list(compared.notes)
    whole = save_whole_call(request, compared.verdict, out, on_phase=on_phase)
    return whole, [*compared.notes, "so this is about the whole call"]
