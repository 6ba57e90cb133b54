"""An explanation for the eye: a headline, the breaks with their lines, a row for each region, details."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchrepro.nouns.sentences import counted
from torchrepro.second_opinion.explanation import (
    CapturedRegion,
    CaptureExplanation,
    GraphBreak,
    SecondOpinion,
)
from torchrepro.second_opinion.sentences import at, headline, is_installed, short_file, why

_SHOWN = 8
"""Functions that became part of their callers; a large model has hundreds."""
_ROWS = 30
"""Regions in the table; a loop that breaks in each round may have many."""


def rendered(explanation: CaptureExplanation, *, guards: bool, graphs: bool, code: bool) -> Group:
    return Group(*_sections(explanation, guards, graphs, code))


def table(explanation: CaptureExplanation) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("region", "begins", "ends"):
        made.add_column(heading, overflow="fold")
    for heading in ("ops", "inputs", "guards"):
        made.add_column(heading, justify="right")
    made.add_column("because", overflow="fold")
    for region in explanation.regions[:_ROWS]:
        made.add_row(
            Text(f"{'  ' * region.depth}{region.number}"),
            Text(f"{region.start.function}:{region.start.line}"),
            Text("returns" if region.end is None else f"line {region.end.line}"),
            Text(str(region.ops) if region.ops else "-"),
            Text(str(len(region.inputs))),
            Text(str(len(region.guards))),
            Text(_because(region)),
        )
    return made


def _sections(
    explanation: CaptureExplanation, guards: bool, graphs: bool, code: bool
) -> Iterator[RenderableType]:
    yield Text(headline(explanation), style="bold")
    for found in explanation.breaks:
        yield Text()
        yield from _break(found)
    if explanation.regions:
        yield Text()
        yield table(explanation)
    if len(explanation.regions) > _ROWS:
        yield Text(f"and {len(explanation.regions) - _ROWS} more", style="dim")
    if any(region.depth for region in explanation.regions):
        yield Text("Regions set further in belong to a function that Python calls at a break.", style="dim")
    for region in explanation.regions:
        yield from _details(region, guards, graphs, code)
    if explanation.inlined or explanation.native:
        yield Text()
        yield from _functions(explanation)
    for note in explanation.notes:
        yield Text(f"note: {note}")
    if explanation.dynamo is not None:
        yield Text()
        yield from _opinion(explanation, explanation.dynamo)


def _break(found: GraphBreak) -> Iterator[RenderableType]:
    place = found.place
    yield Text.assemble((f"break {found.number}", "bold red"), f"  {at(place)} in {place.function}")
    for caller in reversed(found.frames[:-1]):
        yield _indented(Text(f"called at {at(caller)} in {caller.function}", style="dim"))
    yield from _quoted(found)
    rest = f" From here Python runs the rest of {found.rest_of}." if found.rest_of else ""
    yield _indented(Text(f"{found.reason}.{why(found)}{rest} [{found.kind.value}]"))
    if found.hint:
        yield _indented(Text.assemble(("instead: ", "green"), found.hint))


def _quoted(found: GraphBreak) -> Iterator[RenderableType]:
    """The line, with what Python runs underlined as in a traceback."""
    line = found.place.text
    text = line.strip()
    if not text:
        return
    yield _indented(Text(text, style="cyan", no_wrap=True, overflow="ellipsis"), 4)
    first = found.expression.splitlines()[0] if found.expression else ""
    start = found.column - (len(line) - len(line.lstrip()))
    if first and first != text and start >= 0:
        marks = " " * start + "^" * len(first)
        yield _indented(Text(marks, style="red", no_wrap=True, overflow="crop"), 4)


def _details(region: CapturedRegion, guards: bool, graphs: bool, code: bool) -> Iterator[RenderableType]:
    if not (guards or graphs or code):
        return
    yield Text()
    yield Text(f"region {region.number}: {at(region.start)} in {region.start.function}", style="bold")
    if graphs:
        yield _heading(f"graph: {counted(region.ops, 'operation')}" if region.ops else "no graph")
        for given in region.inputs:
            yield _indented(Text(f"{given.source}: {given.tensor}"), 4)
        if region.ops:
            yield _indented(Text(region.graph), 4)
    if guards:
        yield _heading("used again as long as")
        for line in region.guards:
            yield _indented(Text(line), 4)
    if code:
        yield _heading("code around the graph (L: locals, C: cells, S: stack)")
        yield _indented(Text(region.code.rstrip()), 4)


def _functions(explanation: CaptureExplanation) -> Iterator[RenderableType]:
    if explanation.inlined:
        yield Text("functions that became part of their callers:", style="bold")
        listed = sorted(explanation.inlined, key=lambda each: (is_installed(each.file), -each.times))
        for each in listed[:_SHOWN]:
            text = f"{each.times:>3} x {each.name}, {short_file(each.file)}:{each.line}"
            yield _indented(Text(text, no_wrap=True, overflow="ellipsis"))
        if len(listed) > _SHOWN:
            yield _indented(Text(f"and {len(listed) - _SHOWN} more", style="dim"))
    if explanation.native:
        yield Text("run by Python itself:", style="bold")
        for text in explanation.native:
            yield _indented(Text(text, no_wrap=True, overflow="ellipsis"))


def _opinion(explanation: CaptureExplanation, dynamo: SecondOpinion) -> Iterator[RenderableType]:
    yield Text("second opinion, TorchDynamo on the same call:", style="bold")
    if dynamo.raised:
        yield _indented(Text(f"it raised {dynamo.raised}", style="red"))
    for who, graphs, ops, breaks in (
        ("torchrepro", len(explanation.graphs), explanation.ops, len(explanation.breaks)),
        ("dynamo", dynamo.graphs, dynamo.ops, len(dynamo.breaks)),
    ):
        counts = (counted(graphs, "graph"), counted(ops, "operation"), counted(breaks, "break"))
        told = ", ".join(counts) if graphs or breaks else "no graph, no break"
        yield _indented(Text(f"{who:<12}{told}"))
    for reason, place in dynamo.breaks:
        yield _indented(Text(f"dynamo breaks{f' at {place}' if place else ''}: {reason}"))
    for each in dynamo.agreements:
        style = "green" if each.same else "red"
        words = "gives what Python gives" if each.same else f"differs from Python: {each.detail}"
        yield _indented(Text(f"{each.who:<12}{words}", style=style))
    if dynamo.note:
        yield _indented(Text(f"note: {dynamo.note}"))


def _because(region: CapturedRegion) -> str:
    if region.after is not None:
        return f"break {region.after}"
    return f"calls {region.calls}" if region.calls else ""


def _heading(text: str) -> RenderableType:
    return _indented(Text(text, style="dim"))


def _indented(text: Text, by: int = 2) -> RenderableType:
    return Padding(text, (0, 0, 0, by), expand=False)
