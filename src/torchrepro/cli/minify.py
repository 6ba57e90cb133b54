"""`torchrepro minify`: from a failing bundle or program to the script that a maintainer would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from torchrepro.cli.failing import failures_as_lines
from torchrepro.cli.options import Json, Traceback, Trust

if TYPE_CHECKING:
    from torchrepro.nouns.minified import Minified


def minify(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="BUNDLE|SCRIPT|FILE.py:FUNCTION",
            help="A bundle, a program that fails, or a function as for `compare`.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run directory (default: TARGET.minified, beside the target)."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Candidates at a time (default: one a core).")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", min=1.0, help="Seconds after which the search ends with the best so far."
        ),
    ] = None,
    passes: Annotated[
        str | None, typer.Option(metavar="A,B", help="Run only these passes.", show_default=False)
    ] = None,
    skip_pass: Annotated[
        list[str] | None, typer.Option("--skip-pass", metavar="A", help="Leave out a pass (repeatable).")
    ] = None,
    list_passes: Annotated[bool, typer.Option("--list-passes", help="Show the passes and exit.")] = False,
    oracle: Annotated[
        str,
        typer.Option(
            metavar='"COMMAND {}"',
            help="Ask this command instead of the judge: {} is the bundle of a candidate. "
            "Exit 0 it does not fail, 125 it cannot be tested, else it fails.",
            show_default=False,
        ),
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain/--no-explain", help="Find out which parts of the result matter.")
    ] = True,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of going on where a former run was.")
    ] = False,
    trust: Trust = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show what each pass has cost and brought.")] = False,
    json_: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    traceback: Traceback = False,
) -> None:
    """Make a failure as small as it gets, and write the script that shows it.

    The same command goes on where an interrupted one was. Ctrl-C ends the search with the best so far.
    Exit code: 0 minimal and verified, 1 not (it says why), 125 it cannot be tested.
    """
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.minify.settings import MinifySettings
    from torchrepro.nouns.errors import TorchReproError

    if list_passes:
        print_passes()
        return
    with failures_as_lines(as_json=json_, show_traceback=traceback), progress(quiet=quiet) as shown:
        if target is None:
            raise TorchReproError("nothing to minify", next_step="torchrepro minify BUNDLE")
        settings = MinifySettings(
            jobs=jobs,
            time_limit=time_limit,
            passes=tuple(name.strip() for name in (passes or "").split(",") if name.strip()),
            skip=tuple(skip_pass or ()),
            oracle=oracle,
            explain=explain,
            trusted=tuple(trust or ()),
        )
        minified = pipeline.minify(
            target, settings, out=out, fresh=fresh, on_phase=shown.phase, on_message=shown.show
        )
    if json_:
        print(json.dumps(minified.to_dict()))
    else:
        print_minified(minified, stats=stats)
    raise typer.Exit(minified.exit_code)


def print_minified(minified: Minified, *, stats: bool = False, file: TextIO | None = None) -> None:
    """The result for a person: a few lines, the script itself, and last of all its path."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, file=file)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    say(_headline(minified))
    say(f"  {'signature':<12} {escape(minified.signature)}")
    start = (minified.start_ops, minified.start_inputs, minified.start_elements)
    for name, before, after in zip(
        ("ops", "inputs", "elements"), start, (minified.ops, minified.inputs, minified.elements), strict=True
    ):
        say(f"  {name:<12} {before:,} -> {after:,}")
    say(f"  {'queries':<12} {minified.queries} in {minified.seconds:.1f} s")
    for other in minified.also_seen:
        say(f"  also seen    {escape(other.signature)}: {escape(other.bundle)}")
    for note in minified.notes:
        say(f"  [dim]note: {escape(note)}[/]")
    if stats:
        console.print(_table(minified))
    script = Path(minified.script)
    if script.exists():
        print(f"\n{script.read_text().rstrip()}\n", file=file)
    print(script, file=file)


def print_passes() -> None:
    """Every pass in the order in which they run, with what it does."""
    from torchrepro.minify.registry import passes

    rows = passes()
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{row.name:<{width}}  {row.description}")


def _headline(minified: Minified) -> str:
    if minified.minimal:
        return "[bold green]minimal[/]: fails in a fresh process, and nothing can be taken away"
    if not minified.reproduces:
        return "[bold red]not verified[/]: the script does not fail in a fresh process"
    return f"[bold yellow]stopped early[/]: {minified.stopped}; fails in a fresh process, may not be minimal"


def _table(minified: Minified) -> object:
    from rich.table import Table

    table = Table("pass", "queries", "known", "rejected", "adopted", "seconds", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in minified.passes:
        counts = (row.queries, row.known, row.rejected, row.adopted)
        table.add_row(row.name, *map(str, counts), f"{row.seconds:.1f}")
    return table
