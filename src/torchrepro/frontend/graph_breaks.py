"""Break: a place that cannot be captured. The region ends before it, Python runs it, capture continues."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BreakKind(StrEnum):
    DATA = "data_dependent"
    """A Python decision that needs the value of a tensor: `if x.sum() > 0`, `.item()`."""
    OUTSIDE = "outside_world"
    """Printing, files, clocks, random numbers of Python: what must happen on every call."""
    OPAQUE = "opaque_call"
    """A function in C, or of a library, of which nothing is known."""
    UNSUPPORTED = "unsupported"
    """Python or torch that the front end does not support (yet)."""
    RAISES = "raises"
    """The user's own code raises here; Python runs it, so that error and traceback are the real ones."""
    REBUILD = "cannot_be_rebuilt"
    """A value that lives across the place cannot be made again by generated code: a running generator."""
    REQUESTED = "requested"
    """The user asked for it (`graph_break`, `torch.compiler.disable`)."""
    CHANGING = "changing_number"
    """A number that varies between calls, such as a counter."""
    OTHER_RANK = "other_rank"
    """Another rank of the job breaks here, so this one does too."""


def short_name(qualname: str) -> str:
    """Return the name without the enclosing functions, as in the source line."""
    return qualname.rpartition("<locals>.")[2]


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {short_name(self.function)}"


@dataclass(frozen=True, slots=True)
class BreakReason:
    kind: BreakKind
    text: str
    """The fact, in one line, naming the function, type or operator."""
    hint: str = ""
    """What the user could write instead, where there is something."""
    frames: bool = False
    """Whether code looks at frames: Python runs the function to its end, and all that it calls here."""

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


class Control(BaseException):
    """Raised by the front end through the user's frames: never caught by a handler of the user's."""


class Break(Control):
    """Capture cannot go on here. Raised from anywhere below; the speculation log makes it a region's end."""

    def __init__(self, kind: BreakKind, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.reason = BreakReason(kind, text, hint)

    @classmethod
    def of(cls, reason: BreakReason) -> Break:
        made = cls(reason.kind, reason.text)
        made.reason = reason
        return made


class Unsupported(Break):
    """Python or torch that the front end does not support (yet)."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(BreakKind.UNSUPPORTED, text, hint)
