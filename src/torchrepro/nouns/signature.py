"""Signature: what makes two failures the same one. Minification keeps it; a corpus is bucketed by it.

Two failures are the same if they happen at the same stage, in the same way, with the same exception and
the same message once everything that varies between runs and sizes (numbers, addresses, paths, generated
names) has been replaced by a placeholder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchrepro.nouns.verdict import Kind, Stage, Verdict, telling_line

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


@dataclass(frozen=True, slots=True)
class Signature:
    """The stage, the kind, and for an exception its type and the shape of its message."""

    kind: Kind
    stage: Stage = Stage.NONE
    exception: str = ""
    message: str = ""
    op: str = ""

    @classmethod
    def of(cls, verdict: Verdict, op: str = "") -> Signature:
        if verdict.kind is Kind.PASS:
            return cls(Kind.PASS)
        raised = verdict.raised
        return cls(
            kind=verdict.kind,
            stage=verdict.stage,
            exception=raised.type if raised else verdict.signal,
            message=normalise_message(raised.message) if raised else "",
            op=op,
        )

    def matches(self, other: Signature) -> bool:
        """Return whether it is the same failure. An op is compared only where both know theirs."""
        if self.kind is not other.kind:
            return False
        # The signal that killed a process is known only of our own children.
        unknown = self.kind is Kind.CRASH and "" in (self.exception, other.exception)
        if not unknown and (self.exception, self.message) != (other.exception, other.message):
            return False
        known = Stage.NONE not in (self.stage, other.stage)
        if known and self.stage is not other.stage:
            return False
        return not (self.op and other.op) or self.op == other.op

    def __str__(self) -> str:
        stage = "" if self.stage is Stage.NONE else self.stage.value
        return " | ".join(
            part for part in (self.kind.value, stage, self.exception, self.message, self.op) if part
        )


def normalise_message(message: str) -> str:
    """Return the part of an exception's text that stays the same from run to run and from size to size."""
    text = telling_line(message)
    for pattern, placeholder in _VOLATILE:
        text = pattern.sub(_without_counters if placeholder == "<name>" else placeholder, text)
    return text.strip()[:_MESSAGE_LIMIT]


def _without_counters(match: re.Match[str]) -> str:
    """Return a name with the numbers that tell `buf1` from `buf7` taken out; types and ops keep theirs."""
    name = match.group()
    return name if _MEANINGFUL_NUMBER.fullmatch(name) else re.sub(r"\d+", "<n>", name)
