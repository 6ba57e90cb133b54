"""From what the user names to a bundle: itself one, a program that fails, or a function as for `compare`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchrepro.errors import TorchReproError
from torchrepro.minify.session.run_directory import CAUGHT, RunDirectory, run_directory, write_json

_CATCH_ALL = 4
"""The level that catches whatever there is: exceptions, crashes, hangs and wrong numbers."""


@dataclass(frozen=True, slots=True)
class Target:
    """The bundle to minify, and where."""

    bundle: Path
    run_directory: Path | None = None
    """None: beside the bundle."""
    own: bool = False
    """It was made from the user's own program, now or by the same command before."""
    notes: tuple[str, ...] = ()


def bundle_for(
    target: str, *, out: Path | None, fresh: bool, on_phase: Callable[[str], None] = lambda phase: None
) -> Target:
    """The bundle that a target stands for; a program is run, and a function compared, to get one.

    What was caught is kept in the run directory: the same command, after an interruption, goes on with it.
    """
    path, function = Path(target), re.fullmatch(r"(.+\.py):([A-Za-z_]\w*)", target)
    if function is None and path.suffix != ".py":
        return Target(path, out)
    file = path if function is None else Path(function[1])
    if not file.exists():
        raise TorchReproError(
            f"{file} does not exist", next_step="give a bundle, a script or FILE.py:FUNCTION"
        )
    name = file.stem if function is None else f"{file.stem}-{function[2]}"
    directory, elsewhere = run_directory(out, beside=file.with_name(name))
    former = None if fresh else _caught_before(directory, file)
    if former is not None:
        bundle, notes = former, [f"this is what {file} left before; --fresh runs it again"]
    elif function is None:
        bundle, notes = _caught_in_program(file, directory)
    else:
        bundle, notes = _caught_in_function(target, directory, on_phase)
    record = {"file": _digest(file), "bundle": str(bundle.relative_to(directory.path))}
    write_json(directory.path / f"{CAUGHT}.json", record)
    return Target(bundle, directory.path, own=True, notes=(*([elsewhere] if elsewhere else []), *notes))


def _caught_before(directory: RunDirectory, file: Path) -> Path | None:
    """The bundle that the same command has caught, if the program is still the same."""
    try:
        record = json.loads((directory.path / f"{CAUGHT}.json").read_text())
        bundle = directory.path / str(record["bundle"])
        return bundle if record["file"] == _digest(file) and bundle.exists() else None
    except (OSError, ValueError, KeyError):
        return None


def _caught_in_program(file: Path, directory: RunDirectory) -> tuple[Path, list[str]]:
    """Run a program, watched; the first of its failures is most often the cause of the others."""
    from torchrepro.bundle.naming import new_run_id
    from torchrepro.capture.launcher import run_program
    from torchrepro.capture.settings import WatchSettings

    settings = WatchSettings(level=_CATCH_ALL, out=directory.path / CAUGHT, run_id=new_run_id())
    with _standard_output_to_error():
        ended = run_program([str(file)], settings)
    if not ended.caught:
        raise TorchReproError(
            f"nothing failed in {file}: every compiled call agreed with eager (it ended with "
            f"{ended.exit_code})",
            next_step=f"a difference that capture makes shows with torchrepro run --level 4 --whole {file}",
        )
    first, *others = ended.caught
    notes = [f"the first failure of {file}: {first.path}"]
    notes += [f"another one, not minified: {other.path} ({other.signature})" for other in others]
    return first.path, notes


def _caught_in_function(
    target: str, directory: RunDirectory, on_phase: Callable[[str], None]
) -> tuple[Path, list[str]]:
    """Compare what a function builds with its compiled self, and keep the guilty graph."""
    from torchrepro import flow
    from torchrepro.request import ModelRequest

    compared = flow.compare_model(ModelRequest(target), save_to=directory.path / CAUGHT, on_phase=on_phase)
    flow.require_testable(compared.verdict)
    if not compared.verdict.fails:
        raise TorchReproError(
            f"it does not fail here: {compared.verdict}",
            next_step="run it where it fails, or see what else torchrepro compare can vary",
        )
    if compared.bundle is None:
        raise TorchReproError("; ".join(compared.notes), next_step="see torchrepro compare for the verdict")
    return compared.bundle, list(compared.notes)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def _standard_output_to_error() -> Iterator[None]:
    """What the program prints is not our answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
