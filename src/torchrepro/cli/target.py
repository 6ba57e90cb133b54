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

from torchrepro.engine.search.run_directory import CAUGHT, write_json
from torchrepro.nouns.errors import DoesNotFail, TorchReproError

_CATCH_ALL = 4
"""The level that catches whatever there is: exceptions, crashes, hangs and wrong numbers."""

OnPhase = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The bundle that a target stands for."""

    bundle: Path
    directory: Path | None = None
    """Where what was caught is kept; None: a bundle was named."""
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """It was made from the user's own program, now or by the same command before."""
        return self.directory is not None


def bundle_for(
    target: str,
    *,
    directory_for: Callable[[Path], tuple[Path, str]],
    fresh: bool,
    on_phase: OnPhase = lambda phase: None,
) -> Target:
    """The bundle that a target stands for; a program is run, and a function compared, to get one.

    What was caught is kept in a directory of the command's: `directory_for`, which is told what its name is
    made from, makes it, and may have a word to say about where it is. The same command goes on with it.
    """
    function = re.fullmatch(r"(.+\.py|[A-Za-z_][\w.]*):([A-Za-z_]\w*)", target)
    if function is None and Path(target).suffix != ".py":
        return Target(Path(target))
    file = Path(target) if function is None else _file_of(function[1])
    if file is not None and not file.exists():
        raise TorchReproError(
            f"{file} does not exist", next_step="give a bundle, a script or FILE.py:FUNCTION"
        )
    named = file if file is not None else Path(re.sub(r"\W", "-", target))
    name = named.stem if function is None else f"{named.stem}-{function[2]}"
    directory, elsewhere = directory_for(named.with_name(name))
    former = None if fresh or file is None else _caught_before(directory, file)
    if former is not None:
        bundle, notes = former, [f"this is what {file} left before; --fresh runs it again"]
    elif function is None:
        assert file is not None
        bundle, notes = _caught_in_program(file, directory)
    else:
        bundle, notes = _caught_in_function(target, directory, on_phase)
    if file is not None:
        record = {"file": _digest(file), "bundle": str(bundle.relative_to(directory))}
        write_json(directory / f"{CAUGHT}.json", record)
    return Target(bundle, directory, notes=(*([elsewhere] if elsewhere else []), *notes))


def _file_of(named: str) -> Path | None:
    """The file of FILE.py or of a module in the working directory; None for one that is installed."""
    if named.endswith(".py"):
        return Path(named)
    path = Path(*named.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.exists()), None)


def _caught_before(directory: Path, file: Path) -> Path | None:
    """The bundle that the same command has caught, if the program is still the same."""
    try:
        record = json.loads((directory / f"{CAUGHT}.json").read_text())
        bundle = directory / str(record["bundle"])
        return bundle if record["file"] == _digest(file) and bundle.exists() else None
    except (OSError, ValueError, KeyError):
        return None


def _caught_in_program(file: Path, directory: Path) -> tuple[Path, list[str]]:
    """Run a program, watched; the first of its failures is most often the cause of the others.

    A program in which no graph fails is run once more, its whole calls compared: capture may be guilty.
    """
    from torchrepro.bundle.archive import new_run_id
    from torchrepro.catch.launcher import run_program
    from torchrepro.catch.settings import WatchSettings

    for whole in (False, True):
        settings = WatchSettings(level=_CATCH_ALL, out=directory / CAUGHT, run_id=new_run_id(), whole=whole)
        with _standard_output_to_error():
            ended = run_program([str(file)], settings)
        if ended.caught:
            break
    else:
        raise DoesNotFail(
            f"nothing failed in {file}: every compiled call agreed with eager (it ended with "
            f"{ended.exit_code})",
            next_step="run it where it fails, or see what torchrepro run can catch",
        )
    first, *others = ended.caught
    notes = [f"the first failure of {file}: {first.path}"]
    notes += [f"another one, not looked at: {other.path} ({other.signature})" for other in others]
    return first.path, notes


def _caught_in_function(target: str, directory: Path, on_phase: OnPhase) -> tuple[Path, list[str]]:
    """Compare what a function builds with its compiled self, and keep the guilty graph, or the whole call."""
    from torchrepro import pipeline
    from torchrepro.nouns.request import ModelRequest

    request = ModelRequest(target)
    compared = pipeline.compare_model(request, save_to=directory / CAUGHT, on_phase=on_phase)
    pipeline.require_testable(compared.verdict)
    if not compared.verdict.fails:
        raise DoesNotFail(
            f"it does not fail here: {compared.verdict}",
            next_step="run it where it fails, or see what else torchrepro compare can vary",
        )
    if compared.bundle is not None:
        return compared.bundle, list(compared.notes)
    whole = pipeline.save_whole_call(request, compared.verdict, directory / CAUGHT, on_phase=on_phase)
    return whole, [*compared.notes, "so this is about the whole call"]


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
