"""The words of an explanation, for who knows no compiler: what a call became, why a place breaks a graph."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.nouns.sentences import counted
from torchrepro.second_opinion.explanation import CaptureExplanation, GraphBreak, Place

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
_ITERATOR = re.compile(r"use of a \w*iterator, which is not followed")
_LOOP = "the loop began before a break, so Python takes each of its steps"
_TOLD = 3
"""Breaks that the paragraph tells of; `str()` of an explanation has them all."""


def spoken_reason(text: str) -> str:
    """The fact, in words of who wrote the line."""
    return _LOOP if _ITERATOR.fullmatch(text) else text


def hint_of(reason: BreakReason) -> str:
    if _ITERATOR.fullmatch(reason.text):
        return "without the break in its body it becomes part of a graph"
    return reason.hint or _HINTS.get(reason.kind, "")


def why(found: GraphBreak) -> str:
    """Why no graph can contain this kind of thing."""
    return "" if found.reason == _LOOP else f" {_WHY[found.kind]}"


def spoken_source(text: str, *, midway: bool) -> str:
    """A source, as a sentence about it begins. In the middle of a function a local is not an argument."""
    text = re.sub(r"<stack \d+>", "the value that Python just made", text)
    return re.sub(r"\bargument (?=\w)", "variable ", text) if midway else text


def is_installed(file: str) -> bool:
    """Whether it is of a package or of Python's library, and not the user's own."""
    path = Path(file)
    made = file.startswith(("<frozen ", "<string>"))
    return made or _PACKAGES in path.parts or path.is_relative_to(_LIBRARY)


def short_file(file: str) -> str:
    """From the working directory on, where it is below it; from the folder of an installed package on."""
    path = Path(file)
    if _PACKAGES in path.parts:
        return str(Path(*path.parts[path.parts.index(_PACKAGES) + 1 :]))
    for folder in (Path.cwd(), _LIBRARY):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file


def at(place: Place) -> str:
    return f"{short_file(place.file)}:{place.line}"


def summary(explanation: CaptureExplanation) -> str:
    """The headline, and the first breaks in a sentence each."""
    breaks = explanation.breaks
    told = [_told(each) for each in breaks[:_TOLD]]
    told += [f"And {counted(len(breaks) - _TOLD, 'more place')}."] if len(breaks) > _TOLD else []
    return " ".join([headline(explanation), *told])


def headline(explanation: CaptureExplanation) -> str:
    """What the call became."""
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
    return f"{at(found.place)}{shown}: {found.reason}{hint}."


def _short(text: str, most: int = 50) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= most and first == text else first[: most - 3].rstrip() + "..."
