"""The line of an exception's text that tells failures apart, with and without what varies between runs."""

from __future__ import annotations

import re

_WRAPPED = re.compile(r"Failed to import \S+")
"""What inductor puts before an error in a kernel of Triton; only the line after it tells failures apart."""


def telling_line(message: str) -> str:
    """Return the first informative line; of a C++ compiler's output, its first error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and _WRAPPED.fullmatch(lines[0]):
        del lines[0]
    for line in lines:
        found = re.search(r"\berror: .*", line)
        if found:
            return found.group()
    return lines[0] if lines else ""


_MESSAGE_LIMIT = 300

# In order: what contains others comes first.
_VOLATILE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
    (re.compile(r"<torchrepro_source_\w+>"), "<path>"),  # the user's code, run from a bundle
    (re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+\-@]+){2,}"), "<path>"),
    (re.compile(r"\b(?=\w*\d)[0-9a-z]{20,}\b"), "<hash>"),
    (re.compile(r"\b[A-Za-z_]+\d\w*\b"), "<name>"),
    (re.compile(r"\b\d+(?:x\d+)+\b"), "<n>"),
    (re.compile(r"(?<![\w<])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)"), "<n>"),
    (re.compile(r"<n>(?:\s*,\s*<n>)+"), "<n>, ..."),
    (re.compile(r"\s+"), " "),
)

# `float32`, `e4m3`, `conv2d`, `log1p`: a number that is part of what the word means.
_MEANINGFUL_NUMBER = re.compile(
    r"\w*(?:float|int|complex|fp|bf|e\dm)\d+\w*|\w*[a-z]\d+d|[fiu](?:8|16|32|64)|(?:log|exp|atan|expm)\d+p?",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"(?<![A-Za-z])([A-Za-z]+<n>)(?:_\1)+")


def normalise_message(message: str) -> str:
    """Return the part of an exception's text that stays the same from run to run and from size to size."""
    text = telling_line(message)
    for pattern, placeholder in _VOLATILE:
        text = pattern.sub(_without_counters if placeholder == "<name>" else placeholder, text)
    return text.strip()[:_MESSAGE_LIMIT]


def _without_counters(match: re.Match[str]) -> str:
    """Return a name without the numbers that distinguish `buf1` from `buf7`; types and ops keep theirs.

    What inductor has fused is called `op3_op4_op5`, which is `op<n>` as well.
    """
    name = match.group()
    if _MEANINGFUL_NUMBER.fullmatch(name):
        return name
    return _REPEATED.sub(r"\1", re.sub(r"\d+", "<n>", name))
