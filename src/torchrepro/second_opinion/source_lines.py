"""Lines of the user's program: a place with its text, and the expression that an instruction comes from."""

from __future__ import annotations

import linecache

from torchrepro.frontend.bytecode.program import Position
from torchrepro.frontend.graph_breaks import Where, short_name
from torchrepro.second_opinion.explanation import Place


def place_of(where: Where) -> Place:
    text = linecache.getline(where.file, where.line).rstrip()
    return Place(where.file, where.line, short_name(where.function), text)


def expression_at(file: str, position: Position | None) -> tuple[str, int]:
    """The text that a traceback would underline, and the column it begins at; empty where that is unknown."""
    if position is None or position.column is None or position.end_column is None:
        return "", 0
    last = position.end_line or position.line
    lines = [linecache.getline(file, number) for number in range(position.line, last + 1)]
    if not all(lines):
        return "", 0
    # Columns count bytes.
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][: position.end_column]
    before, encoded[0] = encoded[0][: position.column], encoded[0][position.column :]
    return b"".join(encoded).decode(errors="replace").strip(), len(before.decode(errors="replace"))
