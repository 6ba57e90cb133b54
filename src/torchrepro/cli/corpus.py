"""`torchrepro corpus`: a directory of bundles, replayed under one version of torch or compared under two."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchrepro.cli.options import (
    CANNOT_BE_TESTED,
    Json,
    OptionalTimeLimit,
    Quiet,
    Traceback,
    Trust,
    failures_as_lines,
)
from torchrepro.nouns.errors import TorchReproError, visible

if TYPE_CHECKING:
    from torchrepro.corpus.index import Corpus
    from torchrepro.corpus.replays import Plan, Progress
    from torchrepro.corpus.survey import Survey

app = typer.Typer(
    help="Keep many failures in a directory, and replay them under one version of torch or two.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")
_SECONDS_BETWEEN_LINES = 10.0
_VIOLATED = 1

Directory = Annotated[Path, typer.Argument(metavar="CORPUS", help="The directory of the corpus.")]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Replays at the same time (default: one for each core)."),
]
Repeat = Annotated[
    int,
    typer.Option("--repeat", min=1, help="Replays of each bundle, to find the flaky ones."),
]
All = Annotated[bool, typer.Option("--all", help="Also run what generates the same code as before.")]
Only = Annotated[str, typer.Option("--only", metavar="ID", help="Only this bundle or this bucket.")]
Shard = Annotated[
    str, typer.Option("--shard", metavar="I/N", help="A part of the corpus, balanced by recorded durations.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do not continue an interrupted run.")]
BaselineFile = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="What is accepted, a line a bundle.")
]
Update = Annotated[bool, typer.Option("--update", help="Write improvements into the baseline file.")]
UpdateAll = Annotated[
    bool, typer.Option("--update-all", help="Write everything into the baseline file, regressions too.")
]
FailOn = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="STATES",
        help="States, by comma, for which the exit code is 1: regressed, fails-otherwise, cannot-run, flaky, "
        "still-fails, baseline-only, fixed, passes, expired; or none.",
    ),
]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML.")]
Findings = Annotated[
    Path | None, typer.Option("--findings", metavar="FILE", help="Write the JSON of --json into a file.")
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page.")]
Github = Annotated[
    bool, typer.Option("--github", help="Write the summary of a GitHub step, and annotations.")
]


@app.command()
def add(
    corpus: Directory,
    bundle: Annotated[list[Path], typer.Argument(help="Bundles, or directories that `minify` made.")],
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Copy bundles into a corpus, which is made if there is none. The same content is kept once.

    Exit code: 0 all are in it, 125 some could not be read.
    """
    from torchrepro.corpus.index import Corpus

    failed, added = [], []
    with failures_as_lines(as_json=json_, show_traceback=traceback), Corpus(corpus, create=True) as opened:
        for path in bundle:
            try:
                entry, new = opened.add(path)
            except TorchReproError as exc:
                failed.append({"path": str(path), "error": str(exc)})
                _say(f"{path} was not added: {exc}")
                continue
            added.append({**asdict(entry), "new": new})
            if not json_:
                _out(f"{'added' if new else 'known'}  {entry.id}  bucket {entry.bucket}  {entry.name}")
        _say_notes(opened)
        if json_:
            print(json.dumps({"corpus": str(corpus), "added": added, "failed": failed}))
    raise typer.Exit(CANNOT_BE_TESTED if failed else 0)


@app.command("list")
def list_(corpus: Directory, json_: Json = False, traceback: Traceback = False) -> None:
    """List the buckets of a corpus: failures with the same signature, minimal graph and failing pass."""
    from torchrepro.corpus.index import Corpus
    from torchrepro.nouns.sections import Section, Table, counted
    from torchrepro.report.text import print_section

    with failures_as_lines(as_json=json_, show_traceback=traceback), Corpus(corpus) as opened:
        _say_notes(opened)
        if json_:
            sys.stdout.write('{"bundles": [')
            for number, entry in enumerate(opened.entries()):
                sys.stdout.write((", " if number else "") + json.dumps(asdict(entry)))
            sys.stdout.write("]}\n")
            return
        rows = opened.database.execute(
            "SELECT bucket, count(*), min(name), max(culprit), max(signature) FROM bundles "
            "GROUP BY bucket ORDER BY count(*) DESC, bucket"
        ).fetchall()
        table = Table.of(("bucket", "bundles", "for example", "culprit", "signature"), rows, limit=200)
        title = f"{counted(opened.count(), 'bundle')} in {counted(len(rows), 'bucket')}"
        print_section(Section(title, (table,)))


@app.command()
def show(
    corpus: Directory,
    bundle: Annotated[str, typer.Argument(metavar="ID", help="An id, the beginning of one, or a name.")],
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Show a bundle of a corpus, and its replays."""
    from torchrepro.corpus.index import Corpus, read_replays
    from torchrepro.nouns.sections import Facts, Section, Table
    from torchrepro.report.text import print_section

    with failures_as_lines(as_json=json_, show_traceback=traceback), Corpus(corpus) as opened:
        entry = opened.entry(bundle)
        replays = list(read_replays(corpus / "bundles" / entry.id / "replays.jsonl"))
        if json_:
            done = [{**asdict(each), "replayed": asdict(each.replayed)} for each in replays]
            print(json.dumps({**asdict(entry), "path": str(opened.bundle(entry.id)), "replays": done}))
            return
        facts = {
            "bucket": entry.bucket,
            "signature": entry.signature,
            "culprit": entry.culprit,
            "recorded": f"torch {entry.torch}" if entry.torch else "",
            "path": opened.bundle(entry.id),
        }
        rows = [
            (
                *(each.torch, each.host, each.replayed.cannot_run or each.replayed.signature),
                *("yes" if each.replayed.reproduces else "no", f"{each.replayed.seconds:.1f}"),
                each.replayed.code,
            )
            for each in replays[-20:]
        ]
        table = Table.of(("torch", "host", "replayed", "reproduces", "seconds", "code"), rows, limit=20)
        print_section(Section(f"{entry.name} ({entry.id})", (Facts.of(facts.items()), table)))


@app.command()
def rm(
    corpus: Directory,
    bundle: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids, or beginnings of them.")],
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Remove bundles from a corpus, with their replays."""
    from torchrepro.corpus.index import Corpus

    with failures_as_lines(as_json=json_, show_traceback=traceback), Corpus(corpus) as opened:
        found = [opened.entry(each) for each in bundle]  # a wrong id removes nothing
        for entry in found:
            opened.remove(entry.id)
            if not json_:
                _out(f"removed  {entry.id}  {entry.name}")
        if json_:
            print(json.dumps({"removed": [entry.id for entry in found]}))


@app.command()
def run(
    corpus: Directory,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="PATH", help="The Python to replay with (default: this)."),
    ] = None,
    jobs: Jobs = None,
    repeat: Repeat = 1,
    all_: All = False,
    only: Only = "",
    shard: Shard = "1/1",
    fresh: Fresh = False,
    baseline: BaselineFile = None,
    update: Update = False,
    update_all: UpdateAll = False,
    fail_on: FailOn = "regressed",
    findings: Findings = None,
    junit: Junit = None,
    html: Html = None,
    github: Github = False,
    trust: Trust = None,
    time_limit: OptionalTimeLimit = None,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Replay all bundles: still fails, fixed (two silent runs), fails otherwise, flaky, cannot run.

    Exit code: 0, 1 if a state of --fail-on was found, 125 if nothing could be tested, 130 after Ctrl-C: then
    the same command continues.
    """
    from torchrepro.corpus.replays import Plan

    given = locals()
    with failures_as_lines(as_json=json_, show_traceback=traceback):
        plan = Plan((), repeat, _jobs(jobs), all_, _shard(shard), time_limit, tuple(trust or ()), only)
        code = _replay(plan, [python or Path(sys.executable)], given, diff_code=False)
    raise typer.Exit(code)


@app.command()
def ab(
    corpus: Directory,
    python: Annotated[
        list[Path],
        typer.Option(
            "--python", metavar="PATH", help="Twice: the Python of the baseline, then the candidate."
        ),
    ],
    diff_code: Annotated[
        bool, typer.Option("--diff-code", help="Show how the generated code of both differs.")
    ] = False,
    jobs: Jobs = None,
    repeat: Repeat = 1,
    all_: All = False,
    only: Only = "",
    shard: Shard = "1/1",
    fresh: Fresh = False,
    baseline: BaselineFile = None,
    update: Update = False,
    update_all: UpdateAll = False,
    fail_on: FailOn = "regressed",
    findings: Findings = None,
    junit: Junit = None,
    html: Html = None,
    github: Github = False,
    trust: Trust = None,
    time_limit: OptionalTimeLimit = None,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Compare two versions: regressed, fixed, fails on both, only the baseline fails, cannot run.

    A baseline that could not run, or was killed, is none: such a bundle cannot be compared.
    """
    from torchrepro.corpus.replays import Plan

    given = locals()
    with failures_as_lines(as_json=json_, show_traceback=traceback):
        if len(python) != 2:
            raise TorchReproError(
                f"two interpreters are compared, and --python names {len(python)}",
                next_step="write --python OLD --python NEW",
            )
        plan = Plan((), repeat, _jobs(jobs), all_, _shard(shard), time_limit, tuple(trust or ()), only)
        code = _replay(plan, python, given, diff_code=diff_code)
    raise typer.Exit(code)


@app.command()
def merge(
    corpus: Directory,
    other: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Corpora of other shards.")],
    baseline: BaselineFile = None,
    fail_on: FailOn = "regressed",
    findings: Findings = None,
    junit: Junit = None,
    html: Html = None,
    github: Github = False,
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Take over the bundles and replays of other corpora, and show the last run of all shards as one."""
    from torchrepro.corpus.baseline import read_baseline
    from torchrepro.corpus.index import Corpus
    from torchrepro.corpus.runs import Runs
    from torchrepro.corpus.survey import Survey

    given = {**locals(), "update": False, "update_all": False}
    code = 0
    with failures_as_lines(as_json=json_, show_traceback=traceback):
        policy = _policy(fail_on)
        for path in other:
            Corpus(path).__exit__()  # a wrong path changes nothing
        with Corpus(corpus, create=True) as opened:
            runs = Runs(opened)
            for path in other:
                bundles, replays = opened.merge(path)
                runs.merge(path)
                _say(f"{path}: {bundles} new bundles, {replays} new replays")
            latest = runs.latest()
            if latest:
                survey = Survey(opened, latest, read_baseline(baseline) if baseline else {})
                code = _show(survey, policy, given, replays=0, not_run=0, seconds=0.0, diff_code=False)
            elif json_:
                print(json.dumps({"corpus": str(corpus), "bundles": opened.count()}))
    raise typer.Exit(code)


def _replay(plan: Plan, pythons: list[Path], given: dict[str, object], *, diff_code: bool) -> int:
    from torchrepro.corpus.baseline import read_baseline
    from torchrepro.corpus.index import Corpus
    from torchrepro.corpus.replays import replay_corpus
    from torchrepro.corpus.survey import Survey
    from torchrepro.engine.other_python import ask_interpreter

    baseline = given["baseline"]
    if (given["update"] or given["update_all"]) and baseline is None:
        raise TorchReproError("there is no file to update", next_step="name it with --baseline FILE")
    policy = _policy(str(given["fail_on"]))
    accepted = read_baseline(baseline) if isinstance(baseline, Path) else {}
    directory = given["corpus"]
    assert isinstance(directory, Path)
    with Corpus(directory) as corpus:
        plan = replace(plan, interpreters=tuple(map(ask_interpreter, pythons)))
        with _progress(quiet=bool(given["quiet"] or given["json_"])) as tell:
            run, progress = replay_corpus(corpus, plan, fresh=bool(given["fresh"]), on_progress=tell)
        return _show(
            Survey(corpus, [run], accepted),
            policy,
            given,
            replays=progress.replays,
            not_run=progress.not_run,
            seconds=time.monotonic() - progress.began,
            diff_code=diff_code,
        )


def _show(
    survey: Survey,
    policy: frozenset[str],
    given: dict[str, object],
    *,
    replays: int,
    not_run: int,
    seconds: float,
    diff_code: bool,
) -> int:
    """Print the findings, write the files that were asked for, and return the exit code."""
    from torchrepro.corpus import outputs
    from torchrepro.corpus.baseline import updated, write_baseline
    from torchrepro.report.text import print_section

    summary = survey.summary(replays=replays, not_run=not_run, seconds=seconds)
    buckets = survey.buckets()
    if isinstance(given["findings"], Path):
        with outputs.written_in_one_step(given["findings"]) as file:
            outputs.write_json(file, summary, buckets, survey.findings)
    if isinstance(given["junit"], Path):
        with outputs.written_in_one_step(given["junit"]) as file:
            outputs.write_junit(file, summary, survey.findings)
    if isinstance(given["html"], Path):
        from torchrepro.corpus.page import page_of

        with outputs.written_in_one_step(given["html"]) as file:
            file.write(page_of(survey.corpus, summary, buckets, survey.findings, diff_code=diff_code))
    if given["github"]:
        stream = sys.stderr if given["json_"] else sys.stdout
        outputs.write_github(summary, buckets, survey.findings, stream, dict(os.environ))
    if isinstance(given["baseline"], Path) and (given["update"] or given["update_all"]):
        commit = summary.interpreters[-1].commit
        everything = bool(given["update_all"])
        lines = list(updated(survey.baseline, survey.findings(), commit, everything=everything))
        write_baseline(given["baseline"], lines)
    if given["json_"]:
        outputs.write_json(sys.stdout, summary, buckets, survey.findings)
    else:
        print_section(outputs.section_of(summary, buckets))
        if diff_code:
            _print_code(survey, [f"torch {each.torch}" for each in summary.interpreters])
    if not summary.total:
        _say("nothing was replayed: the corpus or the shard is empty")
    return _VIOLATED if survey.violations(policy) else 0


def _print_code(survey: Survey, names: list[str]) -> None:
    from torchrepro.corpus.code_diff import changed, sides_of, unified

    shown = False
    for finding in filter(changed, survey.findings()):
        shown = True
        _out(f"\n{finding.name} ({finding.id})")
        old, new = sides_of(survey.corpus, finding)
        for line in unified(old, new, (names[0], names[1])):
            print(visible(line))
    if not shown:
        print("\nno bundle generates other code")


def _policy(text: str) -> frozenset[str]:
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


def _shard(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise TorchReproError(f"{text!r} is no shard", next_step="write --shard 1/4 to --shard 4/4")
    return int(found[1]), int(found[2])


def _jobs(given: int | None) -> int:
    from torchrepro.engine.processes.limits import usable_cores

    return given or max(1, usable_cores())


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
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
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Bars(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
        ) as bars:
            bar = bars.add_task("starting", total=None)
            yield lambda progress: bars.update(
                bar, description=progress.doing, completed=progress.done, total=progress.total
            )
    else:
        told = [0.0, ""]

        def tell(progress: Progress) -> None:
            now = time.monotonic()
            if progress.doing == told[1] and now - float(str(told[0])) < _SECONDS_BETWEEN_LINES:
                return
            told[:] = now, progress.doing
            spent = now - progress.began
            left = spent / progress.done * (progress.total - progress.done) if progress.done else 0.0
            eta = f", about {left:.0f} s left" if left else ""
            _say(f"{progress.doing}: {progress.done} of {progress.total}, {spent:.0f} s{eta}")

        yield tell


def _out(line: str) -> None:
    print(" ".join(visible(line).split(" ")))


def _say(line: str) -> None:
    print(f"torchrepro: {' '.join(visible(line).split())}", file=sys.stderr)


def _say_notes(corpus: Corpus) -> None:
    for note in corpus.notes:
        _say(note)
