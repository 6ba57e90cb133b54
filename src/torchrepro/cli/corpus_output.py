"""What `torchrepro corpus` shows of a run: progress, the findings, and the files that were asked for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchrepro.nouns.errors import TorchReproError, visible

if TYPE_CHECKING:
    from torchrepro.corpus.baseline import Accepted
    from torchrepro.corpus.runs import Progress
    from torchrepro.corpus.survey import Survey

_SECONDS_BETWEEN_LINES = 10.0
_VIOLATED = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user wants to be told of a run, and where."""

    policy: frozenset[str] = field(default=frozenset())
    baseline: Path | None = None
    update: bool = False
    update_all: bool = False
    findings: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    github: bool = False
    diff_code: bool = False
    json: bool = False

    def accepted(self) -> dict[str, Accepted]:
        """Read the baseline file."""
        from torchrepro.corpus.baseline import read_baseline

        if self.baseline is None and (self.update or self.update_all):
            raise TorchReproError("there is no file to update", next_step="name it with --baseline FILE")
        return {} if self.baseline is None else read_baseline(self.baseline)


def policy_of(text: str) -> frozenset[str]:
    """Return the states that a user has named, by comma; `none` is no state."""
    from torchrepro.corpus.findings import State
    from torchrepro.corpus.survey import EXPIRED

    words = {word.strip() for word in text.split(",") if word.strip()} - {"none"}
    known = {*(state.value for state in State), EXPIRED}
    if not words <= known:
        unknown = ", ".join(sorted(words - known))
        raise TorchReproError(
            f"--fail-on has no state {unknown}", next_step=f"choose among {', '.join(sorted(known))}, none"
        )
    return frozenset(words)


def show_findings(survey: Survey, wanted: Wanted, progress: Progress) -> int:
    """Print the findings, write the files that were asked for, and return the exit code."""
    from torchrepro.corpus import outputs
    from torchrepro.corpus.baseline import updated, write_baseline
    from torchrepro.report.text import print_section

    summary = survey.summary(progress.replays, progress.not_run, time.monotonic() - progress.began)
    buckets = survey.buckets()
    if wanted.findings is not None:
        with outputs.written_in_one_step(wanted.findings) as file:
            outputs.write_json(file, summary, buckets, survey.findings)
    if wanted.junit is not None:
        with outputs.written_in_one_step(wanted.junit) as file:
            outputs.write_junit(file, summary, survey.findings)
    if wanted.html is not None:
        from torchrepro.corpus.page import page_of

        page = page_of(survey.corpus, summary, buckets, survey.findings, diff_code=wanted.diff_code)
        with outputs.written_in_one_step(wanted.html) as file:
            file.write(page)
    if wanted.github:
        stream = sys.stderr if wanted.json else sys.stdout
        outputs.write_github(summary, buckets, survey.findings, stream, os.environ)
    if wanted.baseline is not None and (wanted.update or wanted.update_all):
        commit = summary.interpreters[-1].commit
        lines = updated(survey.baseline, survey.findings(), commit, everything=wanted.update_all)
        write_baseline(wanted.baseline, lines)
    if wanted.json:
        outputs.write_json(sys.stdout, summary, buckets, survey.findings)
    else:
        print_section(outputs.section_of(summary, buckets))
        if wanted.diff_code:
            _print_code(survey, [f"torch {each.torch}" for each in summary.interpreters])
    return _VIOLATED if survey.violations(wanted.policy) else 0


def _print_code(survey: Survey, names: list[str]) -> None:
    from torchrepro.corpus.code_diff import changed, sides_of, unified

    shown = False
    for finding in filter(changed, survey.findings()):
        shown = True
        print(f"\n{visible(finding.name)} ({finding.id})")
        for line in unified(*sides_of(survey.corpus, finding), (names[0], names[1])):
            print(visible(line))
    if not shown:
        print("\nno bundle generates other code")


@contextmanager
def corpus_progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show how far a run is, and how long it will take: a bar on a terminal, else a line now and then."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    from torchrepro.cli.progress import error_console

    console = error_console()
    if quiet:
        yield lambda progress: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
        with Bars(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
        ) as bars:
            bar = bars.add_task("starting", total=None)
            yield lambda progress: bars.update(
                bar, description=progress.doing, completed=progress.done, total=progress.total
            )
    else:
        yield _Lines().tell


class _Lines:
    """Prints a line for each phase of a run, and every ten seconds."""

    def __init__(self) -> None:
        self._at, self._doing = 0.0, ""

    def tell(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.doing == self._doing and now - self._at < _SECONDS_BETWEEN_LINES:
            return
        self._at, self._doing = now, progress.doing
        spent = now - progress.began
        left = spent / progress.done * (progress.total - progress.done) if progress.done else 0.0
        eta = f", about {left:.0f} s left" if left else ""
        say(f"{progress.doing}: {progress.done} of {progress.total}, {spent:.0f} s{eta}")


def say(line: str) -> None:
    """Print a message on standard error."""
    print(f"torchrepro: {' '.join(visible(line).split())}", file=sys.stderr)
