"""Lines as a formatter would lay them out, without needing one at run time.

Only what scripts contain is supported: a statement that is too long is split at its last bracket, first with
its inside on one line, then with one item per line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

WIDTH = 100
INDENT = "    "
_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^'"]""")
"""A string or one character."""


def laid_out(statement: str, depth: int = 0, *, margin: int = 0) -> list[str]:
    """Return the lines of one statement `depth` levels deep, to be indented by `margin` more levels later."""
    if "\n" in statement:
        return [INDENT * depth + line if line else "" for line in statement.split("\n")]
    while statement.startswith(INDENT):
        statement, depth = statement.removeprefix(INDENT), depth + 1
    indent, width = INDENT * depth, WIDTH - len(INDENT) * margin
    code, _, _ = statement.partition("  #")
    start, end = (-1, -1) if len(indent) + len(code) <= width else _last_brackets(statement)
    if start < 0:
        return [indent + statement]  # a comment may exceed the width: no formatter breaks one
    head, inside, tail = statement[: start + 1], statement[start + 1 : end], statement[end:]
    names, equals, value = statement.partition(" = ")
    if len(indent) + len(head) > width and equals and len(names) < start:
        return [f"{indent}{names} = (", *laid_out(value, depth + 1, margin=margin), f"{indent})"]
    items = list(top_level_items(inside))
    # `[...]` or `{...}` alone inside brackets is split itself.
    alone = len(items) == 1 and inside[:1] in ("[", "{")
    if len(indent) + len(INDENT) + len(inside) <= width and not alone:
        return [indent + head, indent + INDENT + inside, indent + tail]
    split = [line for item in items for line in laid_out(item + ",", depth + 1, margin=margin)]
    return [indent + head, *split, indent + tail]


def indented(lines: Sequence[str]) -> list[str]:
    return [INDENT + line if line else "" for line in lines]


def filled(name: str, before: str, items: Sequence[str], after: str) -> str:
    """Return an assignment of a long list with many items per line; formatters would put one per line."""
    body = textwrap.wrap(", ".join(items) + ",", WIDTH - len(INDENT), break_on_hyphens=False)
    return "\n".join(["# fmt: off", f"{name} = {before}", *indented(body), after, "# fmt: on"])


def top_level_items(inside: str) -> Iterator[str]:
    """Yield the texts between the commas that no bracket encloses."""
    start = 0
    for position, depth, character in _walk(inside):
        if character == "," and depth == 0:
            yield inside[start:position].strip()
            start = position + 1
    if inside[start:].strip():
        yield inside[start:].strip()


def _last_brackets(statement: str) -> tuple[int, int]:
    """Return the positions of the last outermost brackets; (-1, -1) where more of the statement follows."""
    start = end = -1
    for position, depth, character in _walk(statement):
        if character in "([{" and depth == 0:
            start = position
        elif character in ")]}" and depth == 1:
            end = position
    return (start, end) if 0 <= start < end and statement[end + 1 :] in ("", ":", ",") else (-1, -1)


def _walk(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (position, depth before it, character) of everything outside of strings."""
    depth = 0
    for token in _TOKEN.finditer(text):
        character = token[0]
        if len(character) == 1:
            yield token.start(), depth, character
            depth += (character in "([{") - (character in ")]}")
