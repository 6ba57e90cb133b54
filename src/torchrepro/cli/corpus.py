"""`torchrepro corpus`: a directory of bundles, replayed under one version of torch or compared under two."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchrepro.cli.corpus_output import Files, Wanted, policy_of, say, show_findings
from torchrepro.cli.options import (
    CANNOT_BE_TESTED,
    Json,
    On,
    OptionalTimeLimit,
    Quiet,
    Traceback,
    Trust,
    failures_as_lines,
    takes_options_of,
)
from torchrepro.nouns.errors import TorchReproError, visible

if TYPE_CHECKING:
    from torchrepro.corpus.index import Corpus

app = typer.Typer(
    help="Keep many failures in a directory, and replay them under one version of torch or two.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")

Directory = Annotated[Path, typer.Argument(metavar="CORPUS", help="The directory of the corpus.")]
BaselineFile = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="What is accepted, a line a bundle.")
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
    bundle: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE",
            help="Bundles, directories of them as `run` writes, or those that `minify` made.",
        ),
    ],
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Copy bundles into a corpus, which is made if there is none. The same content is kept once.

    Exit code: 0 all are in it, 125 some could not be read.
    """
    from torchrepro.corpus.index import Corpus, bundles_at

    failed, added, is_new = [], [], not corpus.exists()
    with failures_as_lines(as_json=json_, show_traceback=traceback), Corpus(corpus, create=True) as opened:
        for path in chain.from_iterable(map(bundles_at, bundle)):
            try:
                entry, new = opened.add(path)
            except TorchReproError as exc:
                failed.append({"path": str(path), "error": str(exc)})
                say(f"{path} was not added: {exc}")
                continue
            added.append({**asdict(entry), "new": new})
            if not json_:
                print(
                    visible(f"{'added' if new else 'known'}  {entry.id}  bucket {entry.bucket}  {entry.name}")
                )
        _say_notes(opened)
        if json_:
            print(json.dumps({"corpus": str(corpus), "added": added, "failed": failed}))
    if is_new and not added:
        shutil.rmtree(corpus, ignore_errors=True)
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
    from torchrepro.corpus.index import Corpus
    from torchrepro.nouns.sections import Facts, Section, Table
    from torchrepro.report.text import print_section

    with failures_as_lines(as_json=json_, show_traceback=traceback), Corpus(corpus) as opened:
        entry = opened.entry(bundle)
        replays = list(opened.all_replays(entry.id))
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
            for each in [each for each in replays if not each.kept][-20:]
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
                print(visible(f"removed  {entry.id}  {entry.name}"))
        if json_:
            print(json.dumps({"removed": [entry.id for entry in found]}))


def _replay(
    directory: Path,
    pythons: list[Path],
    diff_code: bool,
    *,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Replays at the same time (default: one for each core)."),
    ] = None,
    on: On = "",
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Replays of each bundle, to find the flaky ones.")
    ] = 1,
    all_: Annotated[
        bool, typer.Option("--all", help="Also run what generates the same code as before.")
    ] = False,
    only: Annotated[str, typer.Option("--only", metavar="ID", help="Only this bundle or this bucket.")] = "",
    shard: Annotated[
        str,
        typer.Option("--shard", metavar="I/N", help="A part of the corpus, balanced by recorded durations."),
    ] = "1/1",
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not continue an interrupted run.")] = False,
    baseline: BaselineFile = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write improvements into the baseline file.")
    ] = False,
    update_all: Annotated[
        bool, typer.Option("--update-all", help="Write everything into the baseline file, regressions too.")
    ] = False,
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
    """Replay a corpus with these interpreters, show what was found, and exit."""
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.corpus.index import Corpus
    from torchrepro.corpus.replays import Plan, replay_corpus
    from torchrepro.corpus.survey import Survey
    from torchrepro.engine.other_python import ask_interpreter
    from torchrepro.engine.processes.limits import usable_cores
    from torchrepro.engine.remote.relay import workers_of

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        files = Files(findings, junit, html, github, baseline, update, update_all)
        wanted = Wanted(policy_of(fail_on), files, diff_code, json_)
        accepted = files.accepted()
        part = _shard(shard)
        with Corpus(directory) as corpus, pipeline.cluster_at(on) as cluster:
            executor = None if cluster is None else cluster.executor(f"corpus {directory.name}")
            usual = max(1, usable_cores()) if executor is None else workers_of(executor)
            interpreters = tuple(map(ask_interpreter, pythons))
            plan = Plan(
                *(interpreters, repeat, jobs or usual, all_, part, time_limit, tuple(trust or ()), only)
            )
            with progress(quiet=quiet or json_) as shown:
                run, done = replay_corpus(
                    *(corpus, plan),
                    executor=executor,
                    fresh=fresh,
                    on_progress=lambda now: shown.show(now.message),
                )
            if not done.total:
                say("nothing was replayed: this shard is empty")
            code = show_findings(Survey(corpus, [run], accepted), wanted, done.began)
    raise typer.Exit(code)


@app.command()
@takes_options_of(_replay)
def run(
    corpus: Directory,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="PATH", help="The Python to replay with (default: this)."),
    ] = None,
    **rest: Any,
) -> None:
    """Replay all bundles: still fails, fixed (two silent runs), fails otherwise, flaky, cannot run.

    Exit code: 0; 1 a state of --fail-on was found; 125 nothing could be tested; 130 interrupted.
    After Ctrl-C or a crash the same command continues.
    """
    _replay(corpus, [python or Path(sys.executable)], False, **rest)


@app.command()
@takes_options_of(_replay)
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
    **rest: Any,
) -> None:
    """Compare two versions: regressed, fixed, fails on both, only the baseline fails, cannot run.

    A baseline that could not run, or was killed, is none: such a bundle cannot be compared.
    Exit code: 0; 1 a state of --fail-on was found; 125 nothing could be tested; 130 interrupted.
    """
    with failures_as_lines(as_json=rest["json_"], show_traceback=rest["traceback"]):
        if len(python) != 2:
            raise TorchReproError(
                f"two interpreters are compared, and --python names {len(python)}",
                next_step="write --python OLD --python NEW",
            )
    _replay(corpus, python, diff_code, **rest)


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
    from torchrepro.corpus.index import Corpus, require_corpus
    from torchrepro.corpus.runs import Runs
    from torchrepro.corpus.survey import Survey

    code, began = 0, time.monotonic()
    with failures_as_lines(as_json=json_, show_traceback=traceback):
        files = Files(findings, junit, html, github, baseline)
        wanted, accepted = Wanted(policy_of(fail_on), files, json=json_), files.accepted()
        for path in other:
            require_corpus(path)  # a wrong path changes nothing
        with Corpus(corpus, create=True) as opened:
            runs = Runs(opened)
            for path in other:
                bundles, replays = opened.merge(path)
                runs.merge(path)
                say(f"{path}: {bundles} new bundles, {replays} new replays")
            latest = runs.latest()
            if latest:
                code = show_findings(Survey(opened, latest, accepted), wanted, began)
            elif json_:
                print(json.dumps({"corpus": str(corpus), "bundles": opened.count()}))
    raise typer.Exit(code)


def _shard(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise TorchReproError(f"{text!r} is no shard", next_step="write --shard 1/4 to --shard 4/4")
    return int(found[1]), int(found[2])


def _say_notes(corpus: Corpus) -> None:
    for note in corpus.notes:
        say(note)
