"""`torchrepro show`: what is in a bundle, without running any of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchrepro.cli.options import Json, Traceback, failures_as_lines
from torchrepro.nouns.errors import visible

_INPUTS_SHOWN = 12


def show(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle: a directory or a zip of it.")],
    all_: Annotated[bool, typer.Option("--all", help="Show every input.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph's text as well.")] = False,
    source: Annotated[
        bool, typer.Option("--source", help="Print the user's code that --trust source would run.")
    ] = False,
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Show what is in a bundle: the failure, graph, inputs, compiler, state and machine. Runs none of it."""
    from torchrepro.bundle.describe import describe_bundle
    from torchrepro.bundle.read import read_graph_text, read_manifest, read_source_text
    from torchrepro.nouns.sections import Facts, Section, Table, notes
    from torchrepro.report.text import print_section

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        manifest = read_manifest(bundle)
        description = describe_bundle(manifest)
        texts = {"graph": read_graph_text(bundle)} if graph else {}
        texts |= {"source": read_source_text(bundle)} if source else {}
    if json_:
        print(json.dumps({**description.to_dict(), **texts}))
        return
    head = ("input", "kind", "shape", "dtype", "device", "remarks")
    rows = (tuple(getattr(line, name) for name in ("name", *head[1:])) for line in description.inputs)
    inputs = Table.of(head, rows, limit=len(description.inputs) if all_ else _INPUTS_SHOWN)
    print_section(
        Section(str(bundle), (Facts.of(description.facts.items()), inputs, notes(description.notes)))
    )
    for name, text in texts.items():
        print(f"\n{visible(text) or f'the bundle has no {name} text'}")
