"""What a hunt has found, a row a bucket, the most worth an issue first; as data, a page and issue texts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import write_in_one_step
from torchrepro.engine.check_bundle import OnPhase, generate_code
from torchrepro.engine.other_python import ask_interpreter
from torchrepro.engine.processes.fresh_process import result_in_isolation, understood
from torchrepro.engine.processes.signals import die_with, handling, leave
from torchrepro.engine.search.run_directory import refuse_link, write_json
from torchrepro.hunt.buckets import BucketDirectory, Bucketed, Recognised, buckets_in, read
from torchrepro.hunt.directory import HuntDirectory
from torchrepro.hunt.filing import Gate, gate_of
from torchrepro.hunt.hunt import process_of
from torchrepro.nouns import __version__
from torchrepro.nouns.sections import counted
from torchrepro.report.collect import collect, measured
from torchrepro.report.formats import Format, rendered
from torchrepro.report.page.html import assets, template, valid

BUCKETS = "buckets"
ISSUES = "issues"
_ANOTHER = "choose another file with -o FILE"
"""Somebody else's hunt may have links of any name: none is followed."""
_SEEDS = 20
_SECONDS = 24 * 3600.0
"""For all buckets: each run of one has a time limit of its own."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a report says of a bucket; kept in its directory."""

    title: str
    sentence: str
    culprit: str
    script: str
    issue: str
    """The text of an issue."""
    run: bool
    """Whether the bundle was run for it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A bucket in the report."""

    rank: int
    bucket: str
    title: str
    sentence: str
    culprit: str
    rule: str
    script: str
    seeds: tuple[str, ...]
    recognised: int
    """How many of them were recognised without minifying."""
    gate: Gate
    issue: str
    """The file with the text of an issue, relative to the page."""
    directory: str
    minimal: bool


@dataclass(frozen=True, slots=True)
class HuntReport:
    """All buckets of a hunt, ranked."""

    hunt: str
    rows: tuple[Row, ...]
    page: str = ""

    @property
    def worth(self) -> int:
        return sum(row.gate.worth for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        for row, data in zip(self.rows, found["rows"], strict=True):
            data["worth"] = row.gate.worth
        return {**found, "buckets": len(self.rows), "worth": self.worth}


def report_on_hunt(
    directory: Path, output: Path, *, run: bool = True, on_phase: OnPhase = lambda phase: None
) -> HuntReport:
    """Write the page of a hunt to `output` and an issue text per bucket next to it; return what is in them.

    Buckets whose gate is not known are run for it, one after the other; a later call asks nothing again.
    """
    place = directory / BUCKETS if (directory / BUCKETS).is_dir() else directory
    found = list(buckets_in(place))
    entries = []
    for number, bucket in enumerate(found, 1):
        of = f"bucket {number} of {len(found)}"
        told = partial(_with_place, on_phase, of)
        told("asking whether it is worth an issue")
        gate = gate_of(bucket, on_phase=told)
        told("collecting its report")
        about = bucket.about
        assert about is not None, "only finished buckets are reported"
        entries.append(_Entry(bucket, about, gate, _told_of(bucket, about, run=run)))
    entries.sort(key=lambda entry: entry.order)
    issues = output.parent / f"{output.stem}.{ISSUES}"
    refuse_link(issues, _ANOTHER)
    rows = tuple(_row(rank, entry, issues) for rank, entry in enumerate(entries, 1))
    report = HuntReport(directory.name, rows, str(output))
    write_in_one_step(output, page_of(report), _ANOTHER)
    return report


def report_with_its_torch(
    directory: Path, output: Path, *, run: bool = True, on_phase: OnPhase = lambda phase: None
) -> HuntReport:
    """Do what `report_on_hunt` does with the interpreter that has hunted in the directory."""
    hunted = HuntDirectory(directory.absolute())
    known = hunted.known
    # Somebody else's directory may name any program.
    python = known.python if known is not None and hunted.is_mine(known) else ""
    if not python or Path(python) == Path(sys.executable):
        return report_on_hunt(directory, output, run=run, on_phase=on_phase)
    with process_of(ask_interpreter(Path(python))) as (python, environ):
        told = result_in_isolation(
            f"{__name__}:report_here",
            {"directory": str(directory), "output": str(output), "run": run, "parent": os.getpid()},
            time_limit=_SECONDS,
            environ=environ,
            on_phase=on_phase,
            python=python,
            unfinished="the report was not written",
        )
    return understood(told, HuntReport, strict=False)


def report_here(payload: Mapping[str, Any], phase: OnPhase) -> Any:
    """Write a report in a process of the interpreter that hunted."""
    with handling({signal.SIGTERM: leave}):
        die_with(payload["parent"], signal.SIGTERM)
        directory, output = Path(payload["directory"]), Path(payload["output"])
        return msgspec.to_builtins(report_on_hunt(directory, output, run=payload["run"], on_phase=phase))


def _with_place(on_phase: OnPhase, of: str, phase: str) -> None:
    on_phase(f"{of}: {phase}")


def _told_of(bucket: BucketDirectory, about: Bucketed, *, run: bool) -> Told:
    known = read(bucket.told, Told)
    if known is not None and (known.run or not run):
        return known
    contents = collect(
        bucket.bundle, measure=measured if run else None, generate=generate_code if run else None
    )
    told = Told(
        contents.title,
        contents.sentence,
        contents.guilt or about.culprit,
        contents.script,
        rendered(contents, Format.GITHUB),
        run,
    )
    write_json(bucket.told, msgspec.to_builtins(told))
    return told


@dataclass(frozen=True, slots=True)
class _Entry:
    bucket: BucketDirectory
    about: Bucketed
    gate: Gate
    told: Told

    @property
    def order(self) -> tuple[Any, ...]:
        """What is worth an issue first, then usual programs, then frequent failures."""
        usual, members = self.gate.usual.rank, self.bucket.members()
        return not self.gate.worth, usual, -len(members), self.bucket.path.name


def _row(rank: int, entry: _Entry, issues: Path) -> Row:
    about, told, members = entry.about, entry.told, entry.bucket.members()
    issue = issues / f"{rank:02}-{about.bucket}.md"
    write_in_one_step(issue, told.issue, _ANOTHER)
    return Row(
        rank=rank,
        bucket=about.bucket,
        title=told.title,
        sentence=told.sentence,
        culprit=told.culprit,
        rule=about.reason,
        script=told.script,
        seeds=tuple(member.seed for member in members),
        recognised=sum(member.recognised is Recognised.RULE for member in members),
        gate=entry.gate,
        issue=f"{issues.name}/{issue.name}",
        directory=entry.bucket.path.name,
        minimal=about.minimal,
    )


def page_of(report: HuntReport) -> str:
    """Return the whole page; it needs nothing but itself."""
    programs = sum(len(row.seeds) for row in report.rows)
    summary = (
        f"{counted(programs, 'failing program')} in {counted(len(report.rows), 'bucket')}, "
        f"{report.worth} of them worth an issue"
    )
    return valid(
        template("hunt.html").render(
            title=f"Hunt {report.hunt}",
            summary=summary,
            rows=report.rows,
            seeds=_SEEDS,
            answers={True: "yes", False: "no", None: "unknown"},
            assets=assets(),
            version=__version__,
        )
    )
