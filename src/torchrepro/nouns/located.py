"""Located: the culprit and how sure that is, as data: what `--json` prints and `result.json` keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from torchrepro.nouns.verdict import Kind, Stage, as_data


class Confidence(StrEnum):
    """How sure an answer is."""

    VERIFIED = "verified"
    """Turned off, the failure goes away; or the op fails alone, on the values that it was given."""
    LIKELY = "likely"
    """All that was seen points there, and nothing was found that could be turned off to prove it."""
    UNKNOWN = "unknown"


class Way(StrEnum):
    """How an op was found."""

    ERROR = "error"
    """What was raised, or the stack of a crash or a hang, names it."""
    OUTPUTS = "outputs"
    """Its value was returned from the compiled graph: wrong, while all that it reads is right."""
    WINDOW = "window"
    """It fails alone, on recorded values."""
    PIECE = "piece"
    """No op fails alone: of the graph cut shorter and shorter, the one with which the failure goes."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder from eager to the compiler under test, and what it did."""

    backend: str
    stage: Stage
    kind: Kind
    summary: str = ""

    @property
    def fails(self) -> bool:
        return self.kind.fails


@dataclass(frozen=True, slots=True)
class Part:
    """The culprit inside a stage: a pass, a decomposition, a lowering, an option."""

    kind: str
    """`pass`, `decomposition`, `lowering`, `fusion`, `vectorisation`, `option`."""
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Workaround:
    """What a user can do until it is fixed."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """For `torch.compile(options=...)`; empty where another line of code is needed."""
    code: str = ""
    """The line to write: `torch.compile(model, options={"pattern_matcher": False})`."""
    verified: bool = False
    """Whether the failure was seen to go away with it."""


@dataclass(frozen=True, slots=True)
class GuiltyGraph:
    """Which of the compiled graphs of a program fails."""

    number: int
    """From 0, in the order of compilation."""
    count: int
    bundle: str
    name: str = ""
    """In words: `backward of graph 1`, `graph 0, recompiled for another size`."""
    source: str = ""
    """Where it begins in the user's program: `model.py:12 in forward`."""


@dataclass(frozen=True, slots=True)
class GuiltyOp:
    """The first op that is wrong while all that it reads is fine."""

    node: str
    op: str
    """`aten.erf.default`, `torch.nn.functional.gelu`, `.add_`."""
    way: Way
    module: str = ""
    """Path of the user's module: `encoder.layers.3.norm`."""
    source: str = ""
    """`model.py:12 in forward: return x.relu()`."""
    eager_error: float | None = None
    """Against float64, relative to the largest value; None where there is no truth."""
    compiled_error: float | None = None


@dataclass(frozen=True, slots=True)
class Birth:
    """Where the first value that is not finite comes into being, on either side; empty: nowhere."""

    eager: str = ""
    compiled: str = ""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much the computation at a place amplifies an error in what it is given."""

    node: str
    factor: float
    """Relative change of the result for a relative change of the input by one rounding."""
    words: str = ""
    """`rounding is amplified 1,200,000 times by this subtraction`, or `well-conditioned: a wrong kernel`."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The error of one node's value against float64 on both sides, in the order of the graph."""

    node: str
    op: str
    module: str = ""
    source: str = ""
    eager: float | None = None
    compiled: float | None = None
    """None: could not be seen, or nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The generated code that computes the culprit op."""

    name: str
    language: str
    """`cpp`, `triton`, or `extern` for a call of a library."""
    source: str = ""
    file: str = ""
    """Where it was written to, relative to the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The answer of `torchrepro locate`."""

    bundle: str
    kind: Kind
    """How the original fails."""
    directory: str = ""
    """Where the answer is kept, with the generated code."""
    stage: Stage = Stage.NONE
    part: Part | None = None
    graph: GuiltyGraph | None = None
    op: GuiltyOp | None = None
    birth: Birth | None = None
    sensitivity: Sensitivity | None = None
    workaround: Workaround | None = None
    kernel: Kernel | None = None
    rungs: tuple[Rung, ...] = ()
    growth: tuple[Growth, ...] = ()
    compiles: int = 0
    """What reached a backend, warming up included."""
    seconds: float = 0.0
    confidence: Confidence = Confidence.UNKNOWN
    stopped: str = ""
    """Why it ended before everything was looked at; empty if it did not."""
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        return self.stage is not Stage.NONE

    @property
    def exit_code(self) -> int:
        return 0 if self.found else 1

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_located

        return html(of_located(self, sentence=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `pass` and `workaround_verified` are what the table of the verbs promises."""
        found: dict[str, Any] = as_data(asdict(self))
        return {
            **found,
            "found": self.found,
            "pass": self.part.name if self.part else None,
            "workaround_verified": bool(self.workaround and self.workaround.verified),
            "seconds": round(self.seconds, 3),
        }
