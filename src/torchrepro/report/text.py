"""Sections as text: 80 columns for a report, unwrapped for the command line; no control characters.

On a terminal the last column of a table is wrapped to its width, which is where long texts are.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from torchrepro.nouns.errors import on_one_line, visible
from torchrepro.nouns.sections import Code, Facts, Lines, Part, Section, Table

if TYPE_CHECKING:
    from rich.console import Console

    from torchrepro.report.contents import Contents

WIDTH = 80
_NAME = 12
_LOG_LINES = 12
_NARROWEST = 24
"""Columns of a terminal in which texts are wrapped; with less room they are left to the terminal."""
_NUMBER = re.compile(r"(\d[\d,.]*(e[+-]?\d+)?%?|inf|nan|–)?")


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its style for rich; without a terminal only the text is used."""

    text: str
    style: str = ""


def as_text(contents: Contents) -> str:
    """Render a report for a terminal. Only the script may be wider than 80 columns, so that it runs."""
    return "\n".join(line.text for line in report_lines(contents)) + "\n"


def report_lines(contents: Contents) -> Iterator[Line]:
    from torchrepro.report.sections import Limits, sections_of  # not needed for a verdict alone

    return lines_of_sections(sections_of(contents, Limits(rows=12, nodes=12, wide=False)), WIDTH)


def print_section(section: Section, file: TextIO | None = None) -> None:
    """Print a result as a command does: in colour on a terminal, and wrapped in tables alone."""
    from rich.console import Console

    console = Console(highlight=False, file=file)
    columns = console.width if console.is_terminal else None
    print_lines(lines_of_sections([section], None, columns=columns), console=console)


def print_lines(lines: Iterable[Line], *, console: Console | None = None) -> None:
    if console is None:
        from rich.console import Console

        console = Console(highlight=False)
    for line in lines:
        console.print(line.text, style=line.style or None, markup=False, emoji=False, soft_wrap=True)


def lines_of_sections(
    sections: Iterable[Section], width: int | None, *, columns: int | None = None
) -> Iterator[Line]:
    """Yield the lines of sections, an empty line between two; `columns` is the width of tables alone."""
    for number, section in enumerate(sections):
        if number:
            yield Line("")
        yield from _wrapped(section.title, width, style=section.tone.value)
        for part in section.parts:
            yield from _part(part, width, columns)


def _part(part: Part, width: int | None, columns: int | None) -> Iterator[Line]:
    match part:
        case Facts(rows=rows):
            for name, value in rows:
                yield from _wrapped(value, width, indent=f"  {on_one_line(name)[: WIDTH // 2]:<{_NAME}} ")
        case Lines(lines=lines, label=label):
            for line in lines:
                text = f"{label}: {line}" if label else line
                yield from _wrapped(text, width, indent="  ", style="dim" if label == "note" else "")
        case Table():
            yield from _table(part, width, columns)
        case Code(text=text, language="text", title=title) if text:
            yield from _wrapped(title, width, indent="  ")
            for line in visible(text).splitlines()[-_LOG_LINES:]:
                yield Line(_cut(f"  {line}", width))
        case Code(text=text) if text:
            yield from (Line(line) for line in visible(text).rstrip("\n").split("\n"))


def _table(table: Table, width: int | None, terminal: int | None) -> Iterator[Line]:
    """Yield aligned columns, numbers to the right; if rows do not fit, each becomes a sentence."""
    if not table.rows:
        return
    rows = [tuple(on_one_line(cell) for cell in row) for row in (table.head, *table.rows)]
    columns = list(zip(*rows, strict=True))
    sizes = [max(map(len, column)) for column in columns]
    while width is not None and len(sizes) > table.needed > 0 and sum(sizes) + 2 * len(sizes) > width:
        rows, columns, sizes = [row[:-1] for row in rows], columns[:-1], sizes[:-1]
    right = [all(_NUMBER.fullmatch(cell) for cell in column[1:]) for column in columns]
    fits = width is None or table.needed or sum(sizes) + 2 * len(sizes) <= width
    for number, row in enumerate(rows[0 if fits else 1 :], start=0 if fits else 1):
        marked = number - 1 in table.marked
        mark = "> " if marked else "  "
        style = "red" if marked else "dim" if number == 0 else ""
        if fits:
            cells = (
                f"{cell:>{size}}" if is_number else f"{cell:<{size}}"
                for cell, size, is_number in zip(row, sizes, right, strict=True)
            )
            start = 2 + sum(sizes[:-1]) + 2 * (len(sizes) - 1)
            text = mark + "  ".join(cells)
            if terminal is None or len(text) <= terminal or terminal - start < _NARROWEST:
                yield Line(_cut(text, width), style)
                continue
            wrapped = textwrap.wrap(row[-1], terminal - start, break_long_words=False, break_on_hyphens=False)
            yield Line(text[:start] + wrapped[0], style)
            yield from (Line(" " * start + rest, style) for rest in wrapped[1:])
        else:
            pairs = zip(rows[0][1:], row[1:], strict=True)
            named = ", ".join(f"{name} {cell}".strip() for name, cell in pairs if cell)
            yield from _wrapped(f"{row[0]}: {named}", width, indent=mark, style=style)
    if table.more:
        yield Line(f"  ... {table.more}", "dim")


def _wrapped(text: str, width: int | None, *, indent: str = "", style: str = "") -> Iterator[Line]:
    words = on_one_line(text)
    if width is None:
        lines = [indent + words] if words else []
    else:
        following = " " * min(len(indent) + 2, width // 2)
        lines = textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=following)
    yield from (Line(line, style) for line in lines)


def _cut(text: str, width: int | None) -> str:
    text = text.expandtabs(4).rstrip()
    return text if width is None or len(text) <= width else text[: width - 3] + "..."
