"""`torchrepro hunt report`: the buckets of a hunt as a page, with the text of an issue for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchrepro.cli.options import Json, Quiet, Traceback, failures_as_lines
from torchrepro.nouns.errors import visible
from torchrepro.nouns.sections import counted


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
    hunted. The answers are kept: the
    same command goes on where it was interrupted.
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
