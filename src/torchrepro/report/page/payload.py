"""Payload: what the scripts of the page draw, as JSON that can stand inside an HTML element."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from torchrepro.nouns.located import Growth
from torchrepro.report.contents import Contents, ErrorMap, Picture, Step
from torchrepro.report.page.groups import grouped

# As JSON these are the same characters; as HTML they could begin or end an element.
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


class Strings:
    """Each text once: op names, module paths and source lines come back hundreds of times."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def all(self) -> list[str]:
        return list(self._places)


def payload_of(contents: Contents) -> str:
    """The data of the pictures and plots. Texts are places in `strings`."""
    strings = Strings()
    located = contents.located
    data = {
        "pictures": {name: _picture(picture, strings) for name, picture in pictures_of(contents).items()},
        "growth": _growth(located.growth, strings) if located else [],
        "guilty": located.op.node if located and located.op else "",
        "errors": [_error_map(error) for error in contents.errors],
        "steps": _steps(contents.steps),
    }
    return as_json({"strings": strings.all(), **data})


def pictures_of(contents: Contents) -> dict[str, Picture]:
    """Those that have something to draw."""
    pictures = {"minimal": contents.minimal, "original": contents.original}
    return {name: picture for name, picture in pictures.items() if picture is not None and picture.nodes}


def as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _picture(picture: Picture, strings: Strings) -> dict[str, Any]:
    grouping = grouped(picture.nodes)
    numbers = {node.name: number for number, node in enumerate(picture.nodes)}
    return {
        "groups": [
            [strings.place(group.label), group.parent, group.nodes, int(group.open)]
            for group in grouping.groups
        ],
        "nodes": [
            [
                *(strings.place(text) for text in (node.name, node.op, node.kind)),
                *(strings.place(text) for text in (node.module, node.source, node.shape)),
                int(node.guilty),
                group,
                [numbers[name] for name in dict.fromkeys(node.inputs) if name in numbers],
            ]
            for node, group in zip(picture.nodes, grouping.group_of, strict=True)
        ],
    }


def _growth(growth: Iterable[Growth], strings: Strings) -> list[list[Any]]:
    return [
        [
            *(strings.place(text) for text in (point.node, point.op, point.module, point.source)),
            number_or_word(point.eager),
            number_or_word(point.compiled),
        ]
        for point in growth
    ]


def _error_map(error: ErrorMap) -> dict[str, Any]:
    return {
        "path": error.path,
        "edges": [number_or_word(edge) for edge in error.edges],
        "eager": list(error.eager),
        "compiled": list(error.compiled),
        "rows": [[number_or_word(cell) for cell in row] for row in error.rows],
        "dims": list(error.dims),
    }


def _steps(steps: Iterable[Step]) -> list[list[Any]]:
    return [
        [step.query, round(step.seconds, 3), step.ops, step.inputs, step.elements, step.pass_name]
        for step in steps
    ]


def number_or_word(value: float | None) -> float | str | None:
    """JSON has no infinity: it is said in a word. Three digits are what a plot can show."""
    if value is None:
        return None
    if math.isfinite(value):
        return float(f"{value:.3g}")
    return "nan" if math.isnan(value) else "inf"
