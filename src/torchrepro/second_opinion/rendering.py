"""Render an explanation as text: a headline, the breaks, a row for each region, details."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.nouns.sections import Code, Facts, Lines, Part, Section, Table, Tone, counted, notes
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
"""Maximum breaks in the paragraph; `str()` of an explanation has them all."""
_SHOWN = 8
"""Maximum inlined functions to list; a large model has hundreds."""
_ROWS = 30
"""Maximum regions in the table; a loop that breaks in each iteration may have many."""


def spoken_reason(text: str) -> str:
    """Return the fact in terms of the user's source."""
    return _LOOP if _ITERATOR.fullmatch(text) else text


def hint_of(reason: BreakReason) -> str:
    if _ITERATOR.fullmatch(reason.text):
        return "without the break in its body it becomes part of a graph"
    return reason.hint or _HINTS.get(reason.kind, "")


def spoken_source(text: str, *, midway: bool) -> str:
    """Return a source as the subject of a sentence. In the middle of a function, a local is no argument."""
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
    """Return into what the call was captured, in one sentence."""
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


def _short(text: str) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= 50 and first == text else first[:47].rstrip() + "..."


def sections_of(
    explanation: CaptureExplanation, *, guards: bool = False, graphs: bool = False, code: bool = False
) -> Iterator[Section]:
    """Yield the headline, the breaks, the regions with the chosen details, functions, Dynamo's opinion."""
    yield Section(_headline(explanation), (notes(explanation.notes),))
    yield from map(_break, explanation.breaks)
    if explanation.regions:
        yield _table(explanation.regions)
    if guards or graphs or code:
        for region in explanation.regions:
            yield _details(region, guards, graphs, code)
    if explanation.inlined:
        listed = sorted(explanation.inlined, key=lambda each: (_is_installed(each.file), -each.times))
        lines = [f"{each.times} x {each.name}, {short_file(each.file)}:{each.line}" for each in listed]
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        yield Section("functions that became part of their callers", (Lines((*lines[:_SHOWN], *more)),))
    if explanation.native:
        yield Section("run by Python itself", (Lines(explanation.native),))
    if explanation.dynamo is not None:
        yield _opinion(explanation, explanation.dynamo)


def _break(found: GraphBreak) -> Section:
    place = found.place
    callers = (f"called at {_at(each)} in {each.function}" for each in reversed(found.frames[:-1]))
    why = "" if found.reason == _LOOP else f" {_WHY[found.kind]}"
    rest = f" From here Python runs the rest of {found.rest_of}." if found.rest_of else ""
    return Section(
        f"break {found.number}: {_at(place)} in {place.function}",
        (
            Lines(tuple(callers)),
            Code(_quoted(found)),
            Lines((f"{found.reason}.{why}{rest} [{found.kind.value}]",)),
            Lines((found.hint,) if found.hint else (), "instead"),
        ),
        Tone.BAD,
    )


def _quoted(found: GraphBreak) -> str:
    """Return the line, with what Python runs underlined as in a traceback."""
    line = found.place.text
    text = line.strip()
    first = found.expression.splitlines()[0] if found.expression else ""
    start = found.column - (len(line) - len(line.lstrip()))
    if first and first != text and start >= 0:
        text += f"\n  {' ' * start}{'^' * len(first)}"
    return f"  {text}" if text else ""


def _table(regions: Sequence[CapturedRegion]) -> Section:
    rows = (
        (
            f"{'>' * region.depth}{region.number}",
            f"{region.start.function}:{region.start.line}",
            "returns" if region.end is None else f"line {region.end.line}",
            region.ops or "\N{EN DASH}",
            len(region.inputs),
            len(region.guards),
            f"calls {region.calls}" if region.calls else region.after and f"break {region.after}",
        )
        for region in regions
    )
    head = ("region", "begins", "ends", "ops", "inputs", "guards", "because")
    marked = "regions marked > belong to a function that Python calls at a break"
    nested = notes([marked] if any(region.depth for region in regions) else [])
    return Section("regions", (Table.of(head, rows, limit=_ROWS), nested))


def _details(region: CapturedRegion, guards: bool, graphs: bool, code: bool) -> Section:
    parts: list[Part] = []
    if graphs:
        heading = f"graph: {counted(region.ops, 'operation')}" if region.ops else "no graph"
        inputs = (f"{given.source}: {given.tensor}" for given in region.inputs)
        parts += [Lines((heading, *inputs)), Code(region.graph if region.ops else "", "python")]
    if guards:
        parts.append(Lines(("used again as long as", *region.guards)))
    if code:
        parts += [
            Lines(("code around the graph (L: locals, C: cells, S: stack)",)),
            Code(region.code, "python"),
        ]
    return Section(f"region {region.number}: {_at(region.start)} in {region.start.function}", tuple(parts))


def _opinion(explanation: CaptureExplanation, dynamo: SecondOpinion) -> Section:
    raised = [f"it raised {dynamo.raised}"] if dynamo.raised else []
    counts = (
        ("torchrepro", len(explanation.graphs), explanation.ops, len(explanation.breaks)),
        ("dynamo", dynamo.graphs, dynamo.ops, len(dynamo.breaks)),
    )
    sizes = (
        (who, f"{counted(graphs, 'graph')}, {counted(ops, 'operation')}, {counted(breaks, 'break')}")
        for who, graphs, ops, breaks in counts
    )
    places = (f"dynamo breaks{f' at {place}' if place else ''}: {reason}" for reason, place in dynamo.breaks)
    agreed = (
        (each.who, "gives what Python gives" if each.same else f"differs from Python: {each.detail}")
        for each in dynamo.agreements
    )
    parts = (
        Lines(tuple(raised)),
        Facts.of(sizes),
        Lines(tuple(places)),
        Facts.of(agreed),
        notes([dynamo.note]),
    )
    tone = Tone.PLAIN if dynamo.agree else Tone.BAD
    return Section("second opinion, TorchDynamo on the same call", parts, tone)
