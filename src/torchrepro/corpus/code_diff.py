"""The generated code of two versions of torch, side by side."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torchrepro.bundle.read import read_small_file
from torchrepro.corpus.findings import Finding
from torchrepro.corpus.index import Corpus

_CONTEXT = 3
_LONGEST = 20_000
"""Lines of a side: the time of a comparison grows with their square."""

DIFFERENCES = 20
"""Changes that are shown in full."""

Row = tuple[bool, str, str]
"""Whether both sides are the same, and a line of each; empty where a side has none."""


@dataclass(frozen=True, slots=True)
class Change:
    """Generated code that differs in the same way for one bundle or several."""

    finding: Finding
    more: int = 0
    """How many bundles have it in addition to that of the finding."""


def changes_in(findings: Iterable[Finding]) -> list[Change]:
    """Return each change of generated code once, in the order of the findings."""
    found: dict[tuple[str, ...], Change] = {}
    for finding in findings:
        codes = tuple(outcome.code for outcome in finding.outcomes)
        if len(codes) == 2 and all(codes) and codes[0] != codes[1]:
            known = found.get(codes)
            found[codes] = Change(finding) if known is None else replace(known, more=known.more + 1)
    return list(found.values())


def sides_of(corpus: Corpus, finding: Finding) -> tuple[list[str], list[str]]:
    """Return the lines of the code of both; empty where the text is not in this corpus."""
    old, new = (_lines(corpus, outcome.code) for outcome in finding.outcomes)
    return old, new


def _lines(corpus: Corpus, digest: str) -> list[str]:
    if not digest.isalnum():  # of a replay in somebody else's corpus it may be a path
        return []
    try:
        text = read_small_file(corpus.code(digest)).decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[:_LONGEST]


def two_columns(old: list[str], new: list[str]) -> Iterator[Row]:
    """Yield rows of two columns: what differs, with a few lines around it."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number:
            yield True, "...", "..."
        for tag, first, last, start, stop in group:
            left, right = old[first:last], new[start:stop]
            for index in range(max(len(left), len(right))):
                pair = (each[index] if index < len(each) else "" for each in (left, right))
                yield tag == "equal", *pair  # type: ignore[misc]
