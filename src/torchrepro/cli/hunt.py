"""`torchrepro hunt`: generate programs, and keep those that the compiler gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchrepro.cli import hunt_report
from torchrepro.cli.options import CANNOT_BE_TESTED, Json, Quiet, Traceback, Trust, failures_as_lines
from torchrepro.nouns.errors import TorchReproError, visible

if TYPE_CHECKING:
    from torchrepro.hunt.settings import Hunted, HuntSettings

app = typer.Typer(
    help="Generate programs, and keep those that the compiler gets wrong.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


app.command("report")(hunt_report.report)


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
    batch: Annotated[int, typer.Option("--batch", min=1, help="Programs in a compilation, at most.")] = 64,
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
        code = (
            _replay(replay, out, as_json=json_, quiet=quiet)
            if replay
            else _hunt(out, settings, _number(seed), as_json=json_, quiet=quiet)
        )
    raise typer.Exit(code)


def _hunt(out: Path | None, settings: HuntSettings, seed: int | None, *, as_json: bool, quiet: bool) -> int:
    from torchrepro.cli.progress import progress
    from torchrepro.hunt.hunt import hunt

    if out is None:
        raise TorchReproError("a hunt needs a directory", next_step="name one with --out DIR")
    with progress(quiet=quiet or as_json) as shown:
        found = hunt(out, settings, seed=seed, on_message=shown.show)
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


def _replay(seed: str, out: Path | None, *, as_json: bool, quiet: bool) -> int:
    from torchrepro.cli.progress import progress
    from torchrepro.hunt.hunt import replay, sources_of

    with progress(quiet=quiet or as_json) as shown:
        found = replay(seed, sources=sources_of(out), on_phase=shown.phase)
    if as_json:
        verdict = None if found.verdict is None else found.verdict.to_dict()
        print(json.dumps({"seed": seed, "script": found.script, "verdict": verdict}))
    elif found.verdict is not None:
        print(visible(f"{found.script}\n{found.verdict}"))
    else:
        print(f"{seed} leads to no program: eager refuses it, it is random, or capture would break its graph")
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
