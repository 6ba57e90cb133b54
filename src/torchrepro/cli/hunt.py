"""`torchrepro hunt`: generate programs and keep those that the compiler gets wrong; rank what was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchrepro.cli.options import CANNOT_BE_TESTED, Json, On, Quiet, Traceback, Trust, failures_as_lines
from torchrepro.nouns.errors import TorchReproError, visible
from torchrepro.nouns.sections import counted

if TYPE_CHECKING:
    from torchrepro.hunt.hunt import Replayed
    from torchrepro.hunt.settings import Hunted, HuntSettings

app = typer.Typer(
    help="Generate programs, and keep those that the compiler gets wrong.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def hunt(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the hunt keeps what it finds; it continues one that is there."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.1, help="End after so many minutes.", show_default=False),
    ] = None,
    programs: Annotated[
        int | None,
        typer.Option("--programs", min=1, help="End after so many seeds.", show_default=False),
    ] = None,
    until_new: Annotated[
        int | None,
        typer.Option(
            "--until-new", min=1, help="End once so many new buckets were found.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        str, typer.Option("--seed", metavar="HEX", help="Which programs (default: others in each new DIR).")
    ] = "",
    generators: Annotated[
        str,
        typer.Option("--generators", metavar="A,B", help="Use only these generators.", show_default=False),
    ] = "",
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            "--corpus",
            metavar="CORPUS",
            help="Also start from these bundles (repeatable).",
            show_default=False,
        ),
    ] = None,
    list_generators: Annotated[
        bool, typer.Option("--list-generators", help="Show the generators and exit.")
    ] = False,
    replay: Annotated[
        str,
        typer.Option(
            "--replay", metavar="SEED", help="Make the program of a seed again: its script and its verdict."
        ),
    ] = "",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes at a time (default: one per core).")
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            "--python", metavar="PATH", help="Hunt the torch of this interpreter.", show_default=False
        ),
    ] = None,
    torch: Annotated[
        str,
        typer.Option(
            "--torch",
            metavar="VERSION",
            help="Hunt this version; an environment with it is made.",
            show_default=False,
        ),
    ] = "",
    on: On = "",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Programs in a compilation, at most.")] = 128,
    trust: Trust = None,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Generate programs, judge many in one compilation, and keep each that fails as a bundle.

    The first Ctrl-C ends the hunt with what was found so far; the same command continues it. What was found
    is a corpus: torchrepro corpus list DIR/corpus.
    Exit code: 0 nothing failed, 1 something did, 125 it could not be tested.
    """
    if context.invoked_subcommand is not None:
        return
    if list_generators:
        _list_generators(as_json=json_)
        return
    with failures_as_lines(as_json=json_, show_traceback=traceback):
        from torchrepro.cli.progress import progress
        from torchrepro.hunt.hunt import OtherTorch, sources_of
        from torchrepro.hunt.hunt import replay as replay_seed
        from torchrepro.hunt.settings import HuntSettings

        settings = HuntSettings(
            seconds=None if minutes is None else 60 * minutes,
            programs=programs,
            until_new=until_new,
            generators=tuple(filter(None, generators.split(","))),
            corpora=tuple(str(path.absolute()) for path in corpus or ()),
            trusted=tuple(trust or ()),
            jobs=jobs,
            batch=batch,
        )
        if out is None and not replay:
            raise TorchReproError("a hunt needs a directory", next_step="name one with --out DIR")
        number = _number(seed)
        other = OtherTorch(python, torch)
        with progress(quiet=quiet or json_) as shown:
            if replay:
                again = replay_seed(replay, sources=sources_of(out), other=other, on_phase=shown.phase)
            elif out is not None:
                found = _hunt(out, settings, on, seed=number, other=other, on_message=shown.show)
        code = _show_replayed(again, as_json=json_) if replay else _show_hunted(found, as_json=json_)
    raise typer.Exit(code)


def _hunt(out: Path, settings: HuntSettings, on: str, **how: Any) -> Hunted:
    """Hunt here, or on a cluster."""
    from torchrepro import pipeline
    from torchrepro.hunt.hunt import hunt
    from torchrepro.hunt.shares import hunt_in_shares

    with pipeline.cluster_at(on) as cluster:
        if cluster is None:
            return hunt(out, settings, **how)
        return hunt_in_shares(out, settings, cluster.executor(f"hunt {out.name}"), **how)


def _show_hunted(found: Hunted, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        _show(found)
    return 1 if found.failures else 0


def _show(found: Hunted) -> None:
    minutes = max(found.seconds / 60, 1e-3)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.kinds.items())
    lines = [
        f"{found.programs:,} programs ({kinds or 'none'}); {found.no_programs:,} seeds led to none",
        f"this run: {found.judged_now:,} programs in {minutes:.1f} min ({found.judged_now / minutes:.0f}/min)"
        + (f"; {found.stopped}" if found.stopped else ""),
    ]
    lines += [f"  note: {note}" for note in found.notes]
    for failure in found.failures:
        where = failure.bundle or f"not saved: {failure.not_saved}"
        lines += [f"{failure.seed}  {failure.bucket}  {failure.summary}".rstrip(), f"    {where}"]
    if found.failures:
        buckets = f" in {len(found.buckets)} buckets" if found.buckets else ""
        lines.append(
            f"{len(found.failures)} failures{buckets}: torchrepro corpus list {found.directory}/corpus"
        )
    print(visible("\n".join(lines)))


def _show_replayed(found: Replayed, *, as_json: bool) -> int:
    if as_json:
        verdict = None if found.verdict is None else found.verdict.to_dict()
        print(json.dumps({"seed": found.seed, "script": found.script, "verdict": verdict}))
    elif found.verdict is not None:
        print(visible(f"{found.script}\n{found.verdict}"))
    else:
        why = "eager refuses it, it is random, or capture would break its graph"
        print(f"{found.seed} leads to no program: {why}")
    if found.verdict is None or not found.verdict.testable:
        return CANNOT_BE_TESTED
    return 1 if found.verdict.fails else 0


def _list_generators(*, as_json: bool) -> None:
    from torchrepro.hunt.registry import GENERATORS

    if as_json:
        print(json.dumps([{"name": each.name, "about": each.about} for each in GENERATORS]))
        return
    for generator in GENERATORS:
        print(f"{generator.name:12} {generator.about}")


def _number(seed: str) -> int | None:
    try:
        return int(seed, 16) if seed else None
    except ValueError:
        raise TorchReproError(f"{seed!r} is no number", next_step="write hexadecimal digits") from None


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a hunt.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the page (default: hunt.report.html in DIR).",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run", help="Run the bundles for what their issues say about values and kernels."
        ),
    ] = True,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Rank the buckets of a hunt: which is worth an issue, and why.

    A bucket that was not asked about before is run a few times in fresh processes, with the torch that was
    hunted. The answers are kept: the same command goes on where it was interrupted.
    Exit code: 0 the page was written, 125 it cannot be.
    """
    from torchrepro.cli.progress import progress
    from torchrepro.hunt.report import report_with_its_torch

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        target = output if output is not None else directory / "hunt.report.html"
        with progress(quiet=quiet or json_) as shown:
            found = report_with_its_torch(directory, target, run=run, on_phase=shown.phase)
    if json_:
        print(json.dumps(found.to_dict()))
        return
    for row in found.rows:
        worth = "worth an issue" if row.gate.worth else f"not yet: {row.gate.missing[0].name}"
        print(visible(f"{row.rank:3} {row.title} ({counted(len(row.seeds), 'program')}; {worth})"))
    print(visible(target))
