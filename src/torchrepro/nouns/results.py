"""The answers of `locate`, `minify` and `explain` as data: what `--json` prints and `result.json` keeps."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from torchrepro.nouns.contracts import Violation
from torchrepro.nouns.limits import Limits
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Stage, as_data


class Confidence(StrEnum):
    """How sure an answer is."""

    VERIFIED = "verified"
    """Turned off alone, the failure goes away and was not merely hidden; or the op fails alone, on the values
    that it was given."""
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
    CONTRACT = "contract"
    """A custom operator that does not do what it declares, and without which the failure goes away."""
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
    verified: bool = True
    """Turned off alone, in the failing run, and shown wrong itself; else turning it off hides the failure."""


@dataclass(frozen=True, slots=True)
class Workaround:
    """What a user can do until the bug is fixed."""

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
    """Where the first value that is not finite appears, on either side; empty: nowhere."""

    eager: str = ""
    compiled: str = ""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much the computation at a place amplifies an error in its inputs."""

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


@dataclass(frozen=True, slots=True)
class Moment:
    """When something began, or was ready."""

    name: str
    seconds: float
    """Since the search was asked for."""
    queries: int = 0
    """Candidates that had been run by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The answer of `torchrepro locate`."""

    bundle: str
    kind: Kind
    """How the original fails."""
    directory: str = ""
    """Where the answer is kept, with the generated code."""
    stage: Stage = Stage.NONE
    blamed: str = ""
    """`operator mylib::foo` or `pass f in inductor.NAME` where the user's code is the culprit; empty where a
    compiler is."""
    violations: tuple[Violation, ...] = ()
    """What custom operators declare and do not do, whether it explains the failure or not."""
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
    answered_after: float = 0.0
    """Seconds until the culprit and the workaround were known; the evidence came after."""
    timeline: tuple[Moment, ...] = ()
    """When each phase and each step began."""
    confidence: Confidence = Confidence.UNKNOWN
    stopped: str = ""
    """Why it ended before everything was looked at; empty if it did not."""
    notes: tuple[str, ...] = ()
    sandbox: str = ""
    """The sandbox in which it was found, in words; empty: none, the bundle is the user's own or trusted."""

    @property
    def found(self) -> bool:
        return self.stage is not Stage.NONE or bool(self.blamed)

    @property
    def exit_code(self) -> int:
        return 0 if self.found else 1

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_located

        return html(of_located(self, sentence=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `pass` and `workaround_verified` are part of the documented format."""
        found: dict[str, Any] = as_data(asdict(self))
        return {
            **found,
            "found": self.found,
            "pass": self.part.name if self.part else None,
            "workaround_verified": bool(self.workaround and self.workaround.verified),
            "seconds": round(self.seconds, 3),
            "answered_after": round(self.answered_after, 3),
        }


_LINES = 4
_WIDTH = 100


class Area(StrEnum):
    """Which part of a repro is varied; in the order in which a maintainer needs them."""

    VALUES = "values"
    SIZES = "sizes"
    DTYPES = "dtypes"
    BACKENDS = "backends"
    GRADIENTS = "gradients"
    ARGUMENTS = "arguments"
    LAYOUTS = "layouts"
    COMPILER = "compiler"
    AMBIENT = "ambient"
    OPS = "ops"


@dataclass(frozen=True, slots=True)
class Fact:
    """What variations of one part of a repro have shown. The sentence says nothing that was not tried."""

    area: Area
    subject: str
    """What was varied: `x`, `x.dim 1`, `dtype`."""
    sentence: str
    matters: bool
    """Whether the failure went away for some of what was tried, or it tells where the failure comes from."""
    failing: tuple[str, ...] = ()
    """Evidence: what fails in the same way. What the repro itself has is among it."""
    passing: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    """What fails in another way, which says nothing about this failure."""
    short: str = ""
    """Names what does not matter, for a line that lists several."""
    inputs: tuple[int, ...] = ()
    """The numbers of the inputs that were varied."""
    limits: Limits | None = None
    """For which numbers it fails; None where no numbers were tried, or none of them passes."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = as_data(asdict(self))
        otherwise, _ = found.pop("otherwise"), found.pop("short")
        return {**found, "area": self.area.value, "fails_otherwise": otherwise}


@dataclass(frozen=True, eq=False)
class Neighbour:
    """The repro with the smallest edit that makes it pass, and the edit."""

    description: str
    repro: Repro
    diff: str
    """Unified, from the script that fails to the one that passes."""

    def to_dict(self) -> dict[str, Any]:
        return {"description": self.description, "diff": self.diff}


@dataclass(frozen=True, eq=False)
class Explanation:
    """What varying a repro has shown about it."""

    facts: tuple[Fact, ...] = ()
    neighbour: Neighbour | None = None
    notes: tuple[str, ...] = ()
    """What could not be found out, and why."""
    queries: int = 0
    """Questions to the judge. One compilation may answer for many variations, and is one question."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "facts": [fact.to_dict() for fact in self.facts],
            "neighbour": None if self.neighbour is None else self.neighbour.to_dict(),
            "notes": list(self.notes),
            "queries": self.queries,
            "seconds": round(self.seconds, 3),
        }

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_explanation

        return html(of_explanation(self))

    def lines(self) -> tuple[str, ...]:
        """Return at most four lines for the header of a script, what separates failing from passing first."""
        ordered = sorted(self.facts, key=lambda fact: list(Area).index(fact.area))
        matters = [fact for fact in ordered if fact.matters]
        alike = [fact for fact in ordered if not fact.matters]
        if len(matters) + len(alike) <= _LINES:
            chosen = [fact.sentence for fact in (*matters, *alike)]
        else:
            room = _LINES - 1 if alike else _LINES
            chosen = [fact.sentence for fact in matters[:room]]
            if len(chosen) + len(alike) <= _LINES:
                chosen += [fact.sentence for fact in alike]
            elif alike:
                chosen.append(_fitting("does not matter: ", [fact.short or fact.subject for fact in alike]))
        return tuple(textwrap.shorten(line, _WIDTH, placeholder=" ...") for line in chosen)


def _fitting(start: str, names: list[str]) -> str:
    """Return as many whole names as fit into a line."""
    kept = [name for count, name in enumerate(names) if len(start + ", ".join(names[: count + 1])) < _WIDTH]
    return f"{start}{', '.join(kept)}"


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a pass has cost and achieved."""

    queries: int = 0
    """Candidates that were given to the oracle."""
    known: int = 0
    """Candidates whose verdict was known already."""
    rejected: int = 0
    """Candidates that could not run at all, found without the oracle."""
    adopted: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Adoption:
    """A new best candidate, and when it replaced the former one."""

    query: int
    """Candidates that had been run by then, those before an interruption included."""
    seconds: float
    """Of searching, likewise."""
    ops: int
    inputs: int
    elements: int
    pass_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow(Statistics):
    """The same for one pass, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class OtherFailure:
    """A failure of another kind that was found on the way, kept as a bundle of its own."""

    bundle: str
    signature: str


@dataclass(frozen=True, slots=True)
class Minified:
    """The smallest repro that was found, where it is, and whether it was seen to fail in a fresh process."""

    original: str
    """The bundle that was minified."""
    directory: str
    """The run directory."""
    bundle: str
    script: str
    start_ops: int
    start_inputs: int
    start_elements: int
    ops: int
    inputs: int
    elements: int
    queries: int
    """Candidates that were run; after an interruption only those since: the others are known."""
    original_runs: int
    """How often the baseline was run first, to see how it fails."""
    seconds: float
    """Since the search process began, or went on."""
    signature: str
    reproduces: bool
    """Whether the script fails in the same way in a fresh process."""
    verified_after: float = 0.0
    """Seconds after which the script had been run; explaining comes after that."""
    timeline: tuple[Moment, ...] = ()
    """When each phase began, workers were ready, the first task was sent, and the script had been run."""
    stopped: str = ""
    """Why the search ended before nothing could be made smaller; empty if it did not."""
    passes: tuple[PassRow, ...] = ()
    also_seen: tuple[OtherFailure, ...] = ()
    explanation: Mapping[str, Any] | None = None
    explained: tuple[str, ...] = ()
    """The explanation in words, a line each."""
    notes: tuple[str, ...] = ()
    history: tuple[Adoption, ...] = ()
    """How it became smaller, an interrupted run included; empty in results of older versions."""
    scope: Mapping[str, Any] = field(default_factory=dict)
    """The settings that it was found with, as far as another choice may give another result."""
    sandbox: str = ""
    """The sandbox in which it was found, in words; empty: none, the bundle is the user's own or trusted."""

    @property
    def minimal(self) -> bool:
        """Whether the search finished and its result was verified."""
        return self.reproduces and not self.stopped

    @property
    def exit_code(self) -> int:
        return 0 if self.minimal else 1

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_minified

        return html(of_minified(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found: dict[str, Any] = as_data(asdict(self))
        seconds = {"seconds": round(self.seconds, 3), "verified_after": round(self.verified_after, 3)}
        return {**found, "minimal": self.minimal, **seconds}
