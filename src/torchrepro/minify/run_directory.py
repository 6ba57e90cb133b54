"""The directory of a run: what is known so far, the best so far, the result.

    original.json     how the original fails, and how often
    verdicts.sqlite   every verdict, by the canonical key of the candidate
    best/             the best so far as a bundle, replaced in one step
    also_seen/        failures of other kinds that the search met
    minimal/          the result as a bundle, with the script
    history.jsonl     each best so far, one per line, so that it survives an interruption

For its other files see `engine/search/run_directory.py`.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import msgspec

from torchrepro.bundle.read import read_manifest, read_small_file
from torchrepro.engine.line_file import read_lines
from torchrepro.engine.search import run_directory as shared
from torchrepro.engine.search.process import Search
from torchrepro.minify.registry import chosen_passes
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.results import Adoption, Minified


@dataclass(frozen=True, slots=True)
class MinifySettings:
    """How to search. Nothing here changes what counts as the failure, except `oracle`."""

    jobs: int | None = None
    """Candidates at a time; None: one for each core."""
    time_limit: float | None = None
    """Seconds for the search, once the original has been seen to fail; None: until it is minimal."""
    passes: tuple[str, ...] = ()
    """The passes to run, by name; empty: all."""
    skip: tuple[str, ...] = ()
    oracle: str = ""
    """A command that replaces the judge (`minify/command_oracle.py`)."""
    explain: bool = True
    """Find out as well which parts of the result do not matter."""
    trusted: tuple[str, ...] = ()

    @property
    def scope(self) -> dict[str, object]:
        """What a finished result depends on. The number of jobs and the time given are not part of it."""
        return {"passes": sorted(self.passes), "skip": sorted(self.skip), "explain": self.explain}


def read_history(path: Path) -> list[Adoption]:
    """Return the history of an interrupted search; a partially written line is skipped."""
    return list(read_lines(path, Adoption))


def append_to_history(path: Path, adoption: Adoption) -> None:
    """Append a line; if that fails (disk full), the search continues and the report has no plot."""
    try:
        with path.open("a") as file:
            file.write(json.dumps(asdict(adoption)) + "\n")
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # a history with gaps would be wrong


CAUGHT = shared.CAUGHT


@dataclass(frozen=True, slots=True)
class RunDirectory(shared.RunDirectory):
    """The paths in the directory of a minifying run."""

    best = shared.Entry("best")
    also_seen = shared.Entry("also_seen")
    history = shared.Entry("history.jsonl")
    left: ClassVar[tuple[str, ...]] = (
        *("original.json", "verdicts.sqlite"),
        *(entry.name for entry in (best, also_seen, history)),
        shared.MINIMAL,
        *shared.RunDirectory.left,
    )

    def finished(self, settings: MinifySettings) -> Minified | None:
        """Return the result, if a search with these settings has finished here; else None."""
        try:
            found = msgspec.json.decode(read_small_file(self.result), type=Minified)
        except (OSError, msgspec.DecodeError):
            return None
        complete = found.minimal and Path(found.script).exists() and Path(found.bundle).exists()
        return found if complete and found.scope == settings.scope else None


def run_directory(wanted: Path | None, beside: Path) -> tuple[RunDirectory, str]:
    """Return the requested directory, else one next to the bundle; and a note if it is elsewhere."""
    path, elsewhere = shared.place_for(wanted, shared.minified_beside(beside))
    return RunDirectory(path), elsewhere


def minify_search(
    bundle: Path,
    settings: MinifySettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    executor: Executor | None = None,
) -> Search[Minified]:
    """Return the search for the smallest repro that fails as the one in the bundle does."""
    read_manifest(bundle)  # a wrong path is an error at once, and so is the name of a pass
    chosen = settings or MinifySettings()
    chosen_passes(chosen.passes, chosen.skip)
    if executor is not None and chosen.oracle:
        raise TorchReproError(
            "the command of --oracle runs on this machine, so candidates cannot run on others",
            next_step="leave out --on or --oracle",
        )
    directory, elsewhere = run_directory(out, beside=bundle)
    return Search(
        "torchrepro.minify.job:minify",
        Minified,
        bundle,
        directory,
        chosen,
        lambda: directory.finished(chosen),
        elsewhere,
        fresh,
        chosen.oracle,
        lambda: f"; the best so far is in {directory.best}" if directory.best.exists() else "",
        executor=executor,
    )
