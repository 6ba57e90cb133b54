"""`torchrepro locate`: who is guilty (the stage, its part, the graph, the op), and the way around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from torchrepro.cli.failing import failures_as_lines
from torchrepro.cli.options import Json, Traceback, Trust

if TYPE_CHECKING:
    from torchrepro.nouns.located import Located


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
            metavar="DIR", help="Where the result goes (default: located/ in the bundle, or beside a zip)."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time (default: one a core).")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", min=1.0, help="Seconds after which it ends with what was found so far."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Look again instead of giving a former answer.")
    ] = False,
    trust: Trust = None,
    json_: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    traceback: Traceback = False,
) -> None:
    """Find out who is guilty of a failure, and what makes it go away.

    The stage between Python and kernels, the pass, decomposition or lowering in it, the graph, and the first
    op that is wrong; each seen, not guessed. Ctrl-C ends it with what was found so far.
    Exit code: 0 found, 1 nobody found guilty (it says why), 125 it cannot be tested.
    """
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.locate.settings import LocateSettings

    with failures_as_lines(as_json=json_, show_traceback=traceback), progress(quiet=quiet) as shown:
        settings = LocateSettings(jobs=jobs, time_limit=time_limit, trusted=tuple(trust or ()))
        located = pipeline.locate(
            target, settings, out=out, fresh=fresh, on_phase=shown.phase, on_message=shown.show
        )
    if json_:
        print(json.dumps(located.to_dict()))
    else:
        print_located(located)
    raise typer.Exit(located.exit_code)


def print_located(located: Located, *, file: TextIO | None = None) -> None:
    """The answer for a person: who, in plain words; the way around it; the evidence; last of all its path."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, file=file)
    colour = "green" if located.found else "yellow"
    console.print(f"[bold {colour}]{_headline(located)}[/]", soft_wrap=True)
    for name, value in ((name, value) for name, value in _facts(located) if value):
        console.print(f"  {name:<12} {escape(value)}", soft_wrap=True)
    for line in _ladder(located):
        console.print(f"  {escape(line)}", soft_wrap=True)
    for note in located.notes:
        console.print(f"  [dim]note: {escape(note)}[/]", soft_wrap=True)
    if located.directory:
        print(Path(located.directory) / "result.json", file=file)


def _headline(located: Located) -> str:
    from torchrepro.nouns.sentences import STAGES
    from torchrepro.nouns.verdict import Kind

    if located.found:
        return f"guilty: {STAGES[located.stage]}"
    if located.kind is Kind.PASS:
        return "nobody is guilty: it does not fail here"
    return "not found out"


def _facts(located: Located) -> Iterator[tuple[str, str]]:
    """Name and value, a line each; a line that goes on has no name."""
    from torchrepro.nouns.sentences import WAYS

    if located.stopped:
        yield "stopped", f"{located.stopped}; not all was looked at, the same command looks again"
    if located.part is not None:
        yield "inside", f"{located.part.kind} {located.part.name}"
        yield "", located.part.detail
    if located.graph is not None:
        begins = f"; begins at {located.graph.source}" if located.graph.source else ""
        yield "graph", f"{located.graph.name}{begins}"
    op = located.op
    if op is not None:
        yield "op", f"{op.op} (node {op.node})" + (f" in module {op.module}" if op.module else "")
        yield "", op.source
        yield "", WAYS[op.way]
        if op.compiled_error is not None:
            eager = "unknown" if op.eager_error is None else f"{op.eager_error:.2g}"
            yield "error", f"{op.compiled_error:.2g} compiled, {eager} in eager, against float64"
    if located.sensitivity is not None:
        yield "sensitivity", located.sensitivity.words
    if located.birth is not None:
        eager, compiled = (side or "nowhere" for side in (located.birth.eager, located.birth.compiled))
        yield "first NaN", f"or Inf: {compiled} compiled, {eager} in eager"
    if located.workaround is not None and located.workaround.code:
        seen = "verified: the failure goes away" if located.workaround.verified else "not verified"
        yield "work-around", located.workaround.code
        yield "", seen
    if located.kernel is not None:
        where = f", in {located.kernel.file}" if located.kernel.file else ""
        yield "kernel", f"{located.kernel.name} ({located.kernel.language}{where})"
    if located.found:
        yield "sure", located.confidence.value
    if located.compiles:
        yield "cost", f"{located.compiles} compiles in {located.seconds:.1f} s"


def _ladder(located: Located) -> Iterator[str]:
    """What each backend did that goes a step further, a line each."""
    if not located.rungs:
        return
    width = max(len(rung.backend) for rung in located.rungs)
    yield "from eager to the compiler:"
    for rung in located.rungs:
        guilty = "  <- guilty" if rung.fails and rung.stage is located.stage else ""
        yield f"  {rung.backend:<{width}}  {rung.stage.value:<13}  {rung.kind.value}{guilty}"
