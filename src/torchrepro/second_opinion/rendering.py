"""An explanation for people: its words; a headline, the breaks, a row for each region, details."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.nouns.sentences import counted
from torchrepro.second_opinion.explanation import (
    CapturedRegion,
    CaptureExplanation,
    GraphBreak,
    Place,
    SecondOpinion,
)

_WHY = {
    BreakKind.DATA: "While a graph is captured, tensors have shapes and dtypes but no values, so Python has "
    "to run this with the real tensor.",
    BreakKind.OUTSIDE: "A graph holds nothing but tensor operations, so Python does it, each time.",
    BreakKind.OPAQUE: "Nothing can be known of what it does, so Python runs it on every call.",
    BreakKind.UNSUPPORTED: "This front end does not follow it, so Python runs it.",
    BreakKind.RAISES: "Python runs it, so that the error and its traceback are the real ones.",
    BreakKind.REBUILD: "Something that lives across this place cannot be made again by generated code, so "
    "Python keeps it.",
    BreakKind.REQUESTED: "Your program asks for a break here.",
    BreakKind.CHANGING: "A graph would have to be captured for each value, so Python runs what reads it.",
    BreakKind.OTHER_RANK: "Another rank of the job breaks here, and all must compile the same.",
}
_HINTS = {
    BreakKind.OUTSIDE: "do it before or after the function, or not at all",
    BreakKind.OPAQUE: "keep it out of what is to be one graph",
    BreakKind.REQUESTED: "remove the request, if it is no longer needed",
}
_PACKAGES = "site-packages"
_LIBRARY = Path(os.__file__).parent
_ITERATOR = re.compile(r"use of a \w*iterator, which is not traced")
_LOOP = "the loop began before a break, so Python takes each of its steps"
_TOLD = 3
"""Breaks that the paragraph tells of; `str()` of an explanation has them all."""
_SHOWN = 8
"""Functions that became part of their callers; a large model has hundreds."""
_ROWS = 30
"""Regions in the table; a loop that breaks in each round may have many."""


def spoken_reason(text: str) -> str:
    """Return the fact in terms of the user's source."""
    return _LOOP if _ITERATOR.fullmatch(text) else text


def hint_of(reason: BreakReason) -> str:
    if _ITERATOR.fullmatch(reason.text):
        return "without the break in its body it becomes part of a graph"
    return reason.hint or _HINTS.get(reason.kind, "")


def _why(found: GraphBreak) -> str:
    """Return why no graph can contain this kind of thing."""
    return "" if found.reason == _LOOP else f" {_WHY[found.kind]}"


def spoken_source(text: str, *, midway: bool) -> str:
    """Return a source as a sentence about it begins. Midway in a function a local is not an argument."""
    text = re.sub(r"<stack \d+>", "the value that Python just made", text)
    return re.sub(r"\bargument (?=\w)", "variable ", text) if midway else text


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package or to Python's library."""
    path = Path(file)
    made = file.startswith(("<frozen ", "<string>"))
    return made or _PACKAGES in path.parts or path.is_relative_to(_LIBRARY)


def short_file(file: str) -> str:
    """Return a path relative to the working directory, site-packages or Python's library."""
    path = Path(file)
    if _PACKAGES in path.parts:
        return str(Path(*path.parts[path.parts.index(_PACKAGES) + 1 :]))
    for folder in (Path.cwd(), _LIBRARY):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file


def _at(place: Place) -> str:
    return f"{short_file(place.file)}:{place.line}"


def summary(explanation: CaptureExplanation) -> str:
    """Return the headline, and the first breaks in a sentence each."""
    breaks = explanation.breaks
    told = [_told(each) for each in breaks[:_TOLD]]
    told += [f"And {counted(len(breaks) - _TOLD, 'more place')}."] if len(breaks) > _TOLD else []
    return " ".join([_headline(explanation), *told])


def _headline(explanation: CaptureExplanation) -> str:
    """Return what the call became."""
    name, breaks, graphs = explanation.name, explanation.breaks, len(explanation.graphs)
    ops = f"with {counted(explanation.ops, 'operation')}"
    begun = f"The call raised {explanation.raised}. Up to there {name}" if explanation.raised else name
    if not explanation.regions:
        return f"{begun} was run by Python alone: nothing of it was captured."
    if not breaks:
        if graphs == 1:
            return f"{begun} became one graph {ops}: nothing in it needs Python."
        if graphs == 0:
            return f"{begun} does nothing with tensors that could become a graph."
        return f"{begun} became {graphs} graphs {ops}."
    become = "no graph" if graphs == 0 else f"{counted(graphs, 'graph')} {ops}"
    places = "one place" if len(breaks) == 1 else f"{len(breaks)} places"
    after = (
        "and all that follows" if all(each.rest_of for each in breaks) else "and capture goes on behind it"
    )
    after = "" if explanation.raised else f" There Python runs the line itself, {after}."
    return f"{begun} became {become}, because capture had to stop at {places}.{after}"


def _told(found: GraphBreak) -> str:
    text = found.expression or found.place.text.strip()
    shown = f" (`{_short(text)}`)" if text else ""
    hint = f"; instead: {found.hint}" if found.hint else ""
    return f"{_at(found.place)}{shown}: {found.reason}{hint}."


def _short(text: str, most: int = 50) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= most and first == text else first[: most - 3].rstrip() + "..."


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
    yield Text(_headline(explanation), style="bold")
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
    yield Text.assemble((f"break {found.number}", "bold red"), f"  {_at(place)} in {place.function}")
    for caller in reversed(found.frames[:-1]):
        yield _indented(Text(f"called at {_at(caller)} in {caller.function}", style="dim"))
    yield from _quoted(found)
    rest = f" From here Python runs the rest of {found.rest_of}." if found.rest_of else ""
    yield _indented(Text(f"{found.reason}.{_why(found)}{rest} [{found.kind.value}]"))
    if found.hint:
        yield _indented(Text.assemble(("instead: ", "green"), found.hint))


def _quoted(found: GraphBreak) -> Iterator[RenderableType]:
    """Yield the line, with what Python runs underlined as in a traceback."""
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
    yield Text(f"region {region.number}: {_at(region.start)} in {region.start.function}", style="bold")
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
        listed = sorted(explanation.inlined, key=lambda each: (_is_installed(each.file), -each.times))
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
