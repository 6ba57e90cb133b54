"""`torchrepro import` and `torchrepro export`: bundles from PyTorch's own artefacts, and for other tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from torchrepro.cli.options import CANNOT_BE_TESTED, Json, Traceback, failures_as_lines
from torchrepro.interchange.export import Form
from torchrepro.nouns.errors import visible


def import_(
    artefact: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR",
            help="minifier_launcher.py, repro.py, fx_graph_runnable.py, a trace of TORCH_TRACE, or a "
            "directory that has such files.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The bundle; for several artefacts the directory of their bundles "
            "(default: torchrepro-out/imported-NAME).",
            show_default=False,
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="MODULE",
            help="A module that the graph may call (repeatable); `bundle` for none. The bundle then is "
            "yours, and runs without the sandbox.",
        ),
    ] = None,
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Make a bundle of a repro, launcher or trace that PyTorch's own tools have written.

    The file is parsed and never executed. Inputs have the recorded bytes where they lie next to it
    (`checkpoints/storages`), else random values, which the bundle's notes say. The bundle is a stranger's.
    Exit code: 0 at least one artefact was imported, 125 none was.
    """
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress

    with (
        failures_as_lines(as_json=json_, show_traceback=traceback),
        progress(quiet=json_) as shown,
    ):
        imported = pipeline.import_artefacts(
            artefact, out=out, trusted=tuple(trust or ()), on_phase=shown.phase
        )
    if json_:
        answer = {
            "bundles": [str(one.bundle) for one in imported.bundles],
            "notes": {str(one.bundle): list(one.notes) for one in imported.bundles},
            "refused": [{"artefact": one.name, "reason": one.reason} for one in imported.refused],
        }
        print(json.dumps(answer))
    else:
        for one in imported.bundles:
            print(visible(one.bundle))
            for note in one.notes:
                print(visible(f"  note: {note}"), file=sys.stderr)
        for left in imported.refused:
            print(visible(f"torchrepro: {left.name}: {left.reason}"), file=sys.stderr)
    raise typer.Exit(0 if imported.bundles else CANNOT_BE_TESTED)


def export(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE", help="A bundle, the directory that `minify` made, or the minimal bundle in it."
        ),
    ],
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            help="fx_graph_runnable: for torch's own tools. pytest, unittest: a failing test. aoti: compiled "
            "by AOTInductor and compared with eager.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it (default: a name made of the bundle's, in this directory).",
            show_default=False,
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="MODULE",
            help="Write out a stranger's bundle as it is, with its code, modules, libraries and settings "
            "(`bundle`, or what a refusal names); without this what it may run in the sandbox.",
        ),
    ] = None,
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Write a bundle as a file that other tools run; where it was minified, the minimal one. Runs nothing.

    Values that need more than a line are written next to the file. Existing files are not replaced.
    Exit code: 0 written, 125 it cannot be.
    """
    from torchrepro import pipeline

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        exported = pipeline.export_bundle(bundle, form, output, trusted=tuple(trust or ()))
    if json_:
        files = [str(path) for path in exported.side_files]
        told = {"path": str(exported.script), "files": files, "as": form.value}
        print(json.dumps({**told, "minimal": exported.minimal, "stranger": exported.stranger}))
        return
    print(visible(exported.script))
    for path in exported.side_files:
        print(visible(f"  with its values: {path}"), file=sys.stderr)
    if exported.stranger:
        print("  note: the bundle is a stranger's; read the file before you run it", file=sys.stderr)
