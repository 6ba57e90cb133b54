"""Verdict: what happened when a repro was run. Never a bare boolean, always with evidence."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from torchrepro.nouns.comparison import Blame, Comparison
from torchrepro.nouns.errors import TorchReproError


def as_data(value: Any) -> Any:
    """Lists, dicts, numbers and text alone. JSON has no inf and no nan: they become words."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(item) for item in value]
    return value


class Kind(StrEnum):
    """What happened, in the words of the command line."""

    PASS = "pass"
    COMPILE_ERROR = "compile_error"
    RUN_ERROR = "run_error"
    MISMATCH = "mismatch"
    NON_FINITE = "non_finite"
    CRASH = "crash"
    HANG = "hang"
    OUT_OF_MEMORY = "out_of_memory"
    INVALID = "invalid"
    """Eager itself fails, or the graph is ill-formed: nothing can be said about the compiler."""
    FLAKY = "flaky"
    """The same run gives different verdicts."""
    MISSING_ERROR = "missing_error"
    """Eager raises, the compiled function does not."""
    NOT_COMPARABLE = "not_comparable"
    """Random or non-deterministic in a way that cannot be made equal on both sides."""

    @property
    def fails(self) -> bool:
        """Whether this is a failure of the compiled side (and not a pass, nor "cannot be tested")."""
        return self not in (Kind.PASS, Kind.INVALID, Kind.NOT_COMPARABLE)


class Stage(StrEnum):
    """Where between Python and kernels something went wrong; `NONE` where nothing did or it is not known."""

    CAPTURE = "capture"
    AOT = "aot"
    DECOMPOSITION = "decomposition"
    BACKEND = "backend"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as evidence: plain text, so that it crosses processes and outlives its frames."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        telling = telling_line(self.message)
        return f"{self.type}: {telling}" if telling else self.type


def telling_line(message: str) -> str:
    """Return the first line that says something; of a C++ compiler's output, what its first error says."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in lines:
        found = re.search(r"\berror: .*", line)
        if found:
            return found.group()
    return lines[0] if lines else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The kind of outcome, the stage it happened in, and the evidence for it."""

    kind: Kind
    stage: Stage = Stage.NONE
    summary: str = ""
    raised: Raised | None = None
    signal: str = ""
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    stderr_tail: str = ""
    seconds: float = 0.0

    @property
    def fails(self) -> bool:
        return self.kind.fails

    @property
    def testable(self) -> bool:
        """Whether it says anything about the compiler."""
        return self.kind not in (Kind.INVALID, Kind.NOT_COMPARABLE)

    def require_testable(self) -> None:
        """Raise if it says nothing about the compiler because eager itself fails."""
        if self.kind is Kind.INVALID:
            raise TorchReproError(self.summary, next_step="make it run without torch.compile first")

    @property
    def blamed(self) -> Blame:
        """The side that is wrong. An exception, crash or hang of the compiled side is its own fault."""
        if self.comparison is not None and self.kind in (Kind.PASS, Kind.MISMATCH, Kind.NON_FINITE):
            return self.comparison.blamed if self.kind is Kind.PASS else Blame.COMPILED
        return Blame.COMPILED if self.fails else Blame.NOBODY

    @property
    def worst_error(self) -> float | None:
        return None if self.comparison is None else self.comparison.worst_error

    def with_notes(self, *notes: str) -> Verdict:
        return replace(self, notes=self.notes + notes)

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.summary}" if self.summary else self.kind.value

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_verdict

        return html(of_verdict(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "kind": self.kind.value,
            "stage": self.stage.value,
            "summary": self.summary,
            "raised": None if self.raised is None else asdict(self.raised),
            "signal": self.signal,
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "blamed": self.blamed.value,
            "notes": list(self.notes),
            "stderr_tail": self.stderr_tail,
            "seconds": self.seconds,
        }
