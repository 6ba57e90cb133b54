"""`torchrepro locate`: the culprit of a failure (stage, pass, graph, op), and a workaround."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from torchrepro.cli.options import (
    Json,
    Quiet,
    Traceback,
    Trust,
    failures_as_lines,
    model_request,
    takes_model_options,
)
from torchrepro.nouns.errors import visible

if TYPE_CHECKING:
    from torchrepro.nouns.results import Located


@takes_model_options(before="trust")
def locate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|SCRIPT|FILE.py:FUNCTION|MODULE:FUNCTION",
            help="A bundle, a program that fails, or a function as for `compare`.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the result goes (default: located/ in the bundle, or next to a zip)."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Runs in parallel (default: one per core).")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", min=1.0, help="Seconds after which the search ends with what was found so far."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Search again instead of returning a former answer.")
    ] = False,
    trust: Trust = None,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
    **model: Any,
) -> None:
    """Find the culprit of a failure, and a workaround.

    The stage between Python and kernels, the pass, decomposition or lowering in it, the graph, and the first
    op that is wrong; each by experiment. Ctrl-C ends the search with what was found so far.
    Exit code: 0 found, 1 no culprit found (it says why), 125 it cannot be tested.
    """
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.locate.settings import LocateSettings

    with (
        failures_as_lines(as_json=json_, show_traceback=traceback),
        progress(quiet=quiet, phases=True) as shown,
    ):
        settings = LocateSettings(jobs=jobs, time_limit=time_limit, trusted=tuple(trust or ()))
        request = model_request(target, **model)
        located = pipeline.locate(
            request, settings, out=out, fresh=fresh, on_phase=shown.phase, on_message=shown.show
        )
    if json_:
        print(json.dumps(located.to_dict()))
    else:
        print_located(located)
    raise typer.Exit(located.exit_code)


def print_located(located: Located, *, file: TextIO | None = None) -> None:
    """Print the culprit, the workaround and the evidence for a person; last of all the path of the result."""
    from torchrepro.nouns.sections import of_located
    from torchrepro.report.text import print_section

    print_section(of_located(located), file)
    if located.directory:
        print(visible(Path(located.directory) / "result.json"), file=file)
