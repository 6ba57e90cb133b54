"""What `torchrepro corpus` shows of a run: the findings, and the files that were asked for."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchrepro.cli.ci_output import stream_for_commands
from torchrepro.cli.options import CANNOT_BE_TESTED
from torchrepro.nouns.errors import TorchReproError, on_one_line, visible

if TYPE_CHECKING:
    from torchrepro.corpus.baseline import Accepted
    from torchrepro.corpus.survey import Survey

_VIOLATED = 1


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a user wants of a run, and the baseline file."""

    findings: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    github: bool = False
    baseline: Path | None = None
    update: bool = False
    update_all: bool = False

    def accepted(self) -> dict[str, Accepted]:
        """Read the baseline file; raise now for a file that could not be written after hours of replays."""
        from torchrepro.bundle.archive import require_writable
        from torchrepro.corpus.baseline import read_baseline

        if self.baseline is None and (self.update or self.update_all):
            raise TorchReproError("there is no file to update", next_step="name it with --baseline FILE")
        updated = self.baseline if self.update or self.update_all else None
        for path in filter(None, (self.findings, self.junit, self.html, updated)):
            require_writable(path)
        return {} if self.baseline is None else read_baseline(self.baseline)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user wants to be told of a run."""

    policy: frozenset[str]
    files: Files
    diff_code: bool = False
    json: bool = False


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


def show_findings(survey: Survey, wanted: Wanted, began: float) -> int:
    """Print the findings, write the files that were asked for, and return the exit code."""
    from torchrepro.bundle.archive import write_in_one_step, written_in_one_step
    from torchrepro.corpus import outputs
    from torchrepro.corpus.baseline import updated, write_baseline
    from torchrepro.corpus.findings import State
    from torchrepro.report.text import print_section

    summary = survey.summary(time.monotonic() - began)
    buckets, files = survey.buckets(), wanted.files
    if wanted.json:
        outputs.write_json(sys.stdout, summary, buckets, survey.findings)
    else:
        print_section(outputs.section_of(summary, buckets))
        if wanted.diff_code:
            _print_code(survey, [f"torch {each.torch}" for each in summary.interpreters])
    if files.findings is not None:
        with written_in_one_step(files.findings) as file:
            outputs.write_json(file, summary, buckets, survey.findings)
    if files.junit is not None:
        with written_in_one_step(files.junit) as file:
            outputs.write_junit(file, summary, survey.findings)
    if files.html is not None:
        from torchrepro.corpus.page import page_of

        page = page_of(survey.corpus, summary, buckets, survey.findings, diff_code=wanted.diff_code)
        write_in_one_step(files.html, page)
    if files.github:
        stream = stream_for_commands(sys.stderr if wanted.json else sys.stdout)
        outputs.write_github(summary, buckets, survey.findings, stream, os.environ)
    if files.baseline is not None and (files.update or files.update_all):
        commit = summary.interpreters[-1].commit
        lines = updated(survey.baseline, survey.findings(), commit, everything=files.update_all)
        write_baseline(files.baseline, lines)
    if survey.violations(wanted.policy):
        return _VIOLATED
    lost = set(summary.states) == {State.CANNOT_RUN}
    return CANNOT_BE_TESTED if lost and wanted.policy else 0


def _print_code(survey: Survey, names: list[str]) -> None:
    from torchrepro.corpus.code_diff import DIFFERENCES, changes_in, sides_of
    from torchrepro.corpus.outputs import worst_first
    from torchrepro.engine.generated_code import diff_of_code

    changes = changes_in(worst_first(survey.findings))
    for change in changes[:DIFFERENCES]:
        more = f" and {change.more} more with the same change" if change.more else ""
        print(f"\n{visible(change.finding.name)} ({change.finding.id}){more}")
        for line in diff_of_code(*sides_of(survey.corpus, change.finding), (names[0], names[1])):
            print(visible(line))
    if len(changes) > DIFFERENCES:
        print(f"\n... and {len(changes) - DIFFERENCES} more changes of the code; --only ID shows one")
    if not changes:
        print("\nno bundle generates other code")


def say(line: str) -> None:
    """Print a message on standard error."""
    print(f"torchrepro: {on_one_line(line)}", file=sys.stderr)
