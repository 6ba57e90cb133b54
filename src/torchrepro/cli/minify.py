"""`torchrepro minify`: from a failing bundle or program to the script that a maintainer would write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from torchrepro.cli.options import (
    Json,
    On,
    Quiet,
    Traceback,
    Trust,
    failures_as_lines,
    model_request,
    takes_model_options,
)
from torchrepro.nouns.errors import visible

if TYPE_CHECKING:
    from torchrepro.nouns.results import Minified


@takes_model_options(before="trust")
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
        typer.Option(metavar="DIR", help="The run directory (default: TARGET.minified, next to the target)."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Candidates in parallel (default: one per core, also of a cluster)."
        ),
    ] = None,
    on: On = "",
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
        list[str] | None, typer.Option("--skip-pass", metavar="A", help="Skip a pass (repeatable).")
    ] = None,
    list_passes: Annotated[bool, typer.Option("--list-passes", help="Show the passes and exit.")] = False,
    oracle: Annotated[
        str,
        typer.Option(
            metavar='"COMMAND {}"',
            help="Judge candidates by this command: {} is the bundle of a candidate. "
            "Exit 0 passes, 125 cannot be tested, anything else fails.",
            show_default=False,
        ),
    ] = "",
    explain: Annotated[
        bool, typer.Option("--explain/--no-explain", help="Vary the result, to see which factors matter.")
    ] = True,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing a former run.")
    ] = False,
    trust: Trust = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show the cost and the gain of each pass.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
    **model: Any,
) -> None:
    """Make a failure as small as possible, and write the script that shows it.

    The same command continues where an interrupted one stopped. Ctrl-C ends the search with the best so far.
    Exit code: 0 minimal and verified, 1 not (it says why), 125 it cannot be tested.
    """
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.minify.run_directory import MinifySettings
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
        request = model_request(target, **model)
        minified = pipeline.minify(
            request, settings, out=out, fresh=fresh, on=on, on_phase=shown.phase, on_message=shown.show
        )
    if json_:
        print(json.dumps(minified.to_dict()))
    else:
        print_minified(minified, stats=stats)
    raise typer.Exit(minified.exit_code)


def print_minified(minified: Minified, *, stats: bool = False, file: TextIO | None = None) -> None:
    """Print the result for a person: a few lines, the script, and last of all its path."""
    from torchrepro.nouns.sections import of_minified
    from torchrepro.report.text import print_section

    script = Path(minified.script)
    text = script.read_text().rstrip() if script.exists() else ""
    # The script and its path are printed last, and its header has the explanation.
    explained = tuple(line for line in minified.explained if line not in text)
    print_section(of_minified(replace(minified, script="", explained=explained), stats=stats), file)
    if text:
        print(f"\n{visible(text)}\n", file=file)
    print(visible(script), file=file)


def print_passes() -> None:
    """Every pass in the order in which they run, with what it does."""
    from torchrepro.minify.registry import passes

    rows = passes()
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{row.name:<{width}}  {row.description}")
