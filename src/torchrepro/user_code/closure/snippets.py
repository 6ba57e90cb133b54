"""A piece of a file moved elsewhere: names replaced, indentation changed, every other character as it was."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from torchrepro.user_code.closure.files import SourceFile
from torchrepro.user_code.closure.scopes import DEFINITIONS, Definition

INDENT = "    "
_NAME_OF_DEFINITION = re.compile(rb"(?:async\s+)?(?:def|class)\s+(\w+)")


@dataclass(frozen=True)
class Edit:
    """New text for the bytes between two offsets of the file."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Snippet:
    """Lines without indentation. Lines inside a string are never indented: that would change it."""

    lines: tuple[str, ...]
    fixed: frozenset[int]

    def text(self, depth: int = 0) -> str:
        return "\n".join(
            line if number in self.fixed or not line.strip() else INDENT * depth + line
            for number, line in enumerate(self.lines)
        )


class Cutter:
    """Cuts pieces out of one file, by the places that its syntax tree names."""

    def __init__(self, file: SourceFile) -> None:
        self._lines = file.text.encode().splitlines(keepends=True)
        self._data = b"".join(self._lines)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """An edit in place of a whole node."""
        return Edit(*self._span(node), text)

    def rename(self, node: Definition, name: str) -> Edit:
        """An edit of the name that a `def` or `class` binds."""
        start, end = self._span(node)
        found = _NAME_OF_DEFINITION.match(self._data, start, end)
        assert found is not None, "a definition begins with its keyword"
        return Edit(found.start(1), found.end(1), name)

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        """The characters of a node, as they stand."""
        start, end = self._span(node)
        return self._data[start:end].decode()

    def cut(self, node: ast.expr | ast.stmt, edits: list[Edit], *, decorators: bool = False) -> Snippet:
        """A node with the edits made, as lines that begin at the margin."""
        start, end = self._span(node)
        if decorators and isinstance(node, DEFINITIONS) and node.decorator_list:
            first = node.decorator_list[0]
            start = self._data.rindex(b"@", 0, self._offset(first.lineno, first.col_offset))
        pieces, position, fixed = [], start, self._lines_in_strings(node, start)
        shifted: list[tuple[int, int]] = []
        for edit in sorted(edits, key=lambda edit: edit.start):
            if edit.start < position or edit.end > end:
                continue
            pieces += [self._data[position : edit.start].decode(), edit.text]
            removed = self._data[edit.start : edit.end].count(b"\n") - edit.text.count("\n")
            shifted.append((self._data[start : edit.end].count(b"\n"), removed))
            position = edit.end
        pieces.append(self._data[position:end].decode())
        margin = self._margin(start)
        moved = {line - sum(removed for after, removed in shifted if line >= after) for line in fixed}
        lines = "".join(pieces).splitlines()
        return Snippet(
            tuple(
                line if number in moved or number == 0 else _without_margin(line, margin)
                for number, line in enumerate(lines)
            ),
            frozenset(moved),
        )

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _margin(self, start: int) -> int:
        line = self._data[self._data.rfind(b"\n", 0, start) + 1 :]
        return len(line) - len(line.lstrip(b" \t"))

    def _lines_in_strings(self, node: ast.AST, start: int) -> set[int]:
        """Lines, counted from the first of the piece, that begin inside a string."""
        first = self._data[:start].count(b"\n") + 1
        return {
            line - first
            for part in ast.walk(node)
            if isinstance(part, ast.JoinedStr)
            or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
            for line in range(part.lineno + 1, (part.end_lineno or part.lineno) + 1)
        }


def _without_margin(line: str, margin: int) -> str:
    blank = len(line) - len(line.lstrip(" \t"))
    return line[min(margin, blank) :]
