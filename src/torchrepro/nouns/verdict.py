"""Verdict: what happened when a repro was run, never a bare boolean, always with evidence.

Its parts: `Comparison` says where and how two results differ, leaf by leaf; `Signature` is what makes two
failures the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.messages import normalise_message, telling_line

_T = TypeVar("_T")


class Blame(StrEnum):
    """Which side is further from the truth than it may be."""

    COMPILED = "compiled"
    EAGER = "eager"
    NOBODY = "nobody"


class Difference(StrEnum):
    """In what way a leaf differs. The order is the order in which it is looked for."""

    NONE = "none"
    STRUCTURE = "structure"
    TYPE = "type"
    SHAPE = "shape"
    DTYPE = "dtype"
    DEVICE = "device"
    LAYOUT = "layout"
    STRIDE = "stride"
    NON_FINITE = "non_finite"
    VALUE = "value"
    RAISED = "raised"


_LEAF = re.compile(
    r"""(?P<part>[^.\[]*)(?:\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<name>.*?)(?P=quote)\])?(?P<rest>.*)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LeafPath:
    """Where a value lies in what a run left: `out[0]`, `grad["inputs[3]"]`, `python["globals.x"][2]`."""

    text: str = ""
    part: str = ""
    """`out`, `grad`, `inputs`, `state` or `python`."""
    index: int | None = None
    """The number of the output or of the input (of the input for `grad["inputs[3]"]` too)."""
    name: str = ""
    """The name of a parameter, a buffer or a Python object; the key of an output that is in a dict."""
    rest: str = ""
    """The steps from there on, as Python writes them."""

    @classmethod
    def parse(cls, text: str) -> LeafPath:
        """Take apart what the judge wrote (`judge/compare.py`): the only reader of such a text."""
        found = _LEAF.fullmatch(text)
        assert found is not None, "the pattern matches every text"
        part, index, name, rest = found["part"], found["index"], found["name"] or "", found["rest"]
        if part == "grad" and name.startswith("inputs["):
            given = cls.parse(name)
            if given.index is not None:
                return cls(text, part, given.index, "", given.rest + rest)
        return cls(text, part, None if index is None else int(index), name, rest)

    @property
    def output(self) -> int | None:
        """The number of the output that the value lies in; None where it lies in none."""
        return self.index if self.part == "out" else None

    @property
    def input(self) -> int | None:
        """The number of the input that the value, or what it is the gradient of, lies in; None for none."""
        return self.index if self.part in ("inputs", "grad") else None

    def owner(self, outputs: Sequence[_T], inputs: Sequence[_T]) -> _T | None:
        """Return the entry for the output or input that this value belongs to; None where there is none."""
        index, owners = (self.output, outputs) if self.part == "out" else (self.input, inputs)
        return owners[index] if index is not None and index < len(owners) else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class LeafComparison:
    """One leaf of the two results: what differs, where it is worst, and by how much.

    `path` is text, which crosses processes and goes into JSON as it is; `where` is the same taken apart.
    `index` is the worst element; `max_rel`, `max_ulp` and so on are over the elements that are finite on
    both sides. The two RMSE values are against the float64 truth. What was not measured is None.
    """

    path: str
    difference: Difference = Difference.NONE
    detail: str = ""
    blamed: Blame = Blame.NOBODY
    index: tuple[int, ...] | None = None
    ref_value: str = ""
    res_value: str = ""
    truth_value: str = ""
    elements: int = 0
    mismatched: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    max_ulp: float | None = None
    rmse_ref: float | None = None
    rmse_res: float | None = None
    cosine: float | None = None

    @property
    def same(self) -> bool:
        return self.difference is Difference.NONE

    @property
    def where(self) -> LeafPath:
        return LeafPath.parse(self.path)

    @property
    def severity(self) -> float:
        """The relative error as a sort key: infinite where it is NaN, zero where it was not measured."""
        return float("inf") if self.max_rel != self.max_rel else self.max_rel or 0.0

    def badness(self) -> tuple[bool, int, float]:
        return not self.same, self.mismatched, self.severity

    def __str__(self) -> str:
        where = self.path or "the value"
        if self.same:
            return f"{where}: same" + (f" ({self.detail})" if self.detail else "")
        at = f" at {list(self.index)}" if self.index is not None else ""
        return f"{where}{at}: {self.detail or self.difference.value}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two nested values. `bool(comparison)` answers "the same?"."""

    leaves: tuple[LeafComparison, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return all(leaf.same for leaf in self.leaves)

    @property
    def differing(self) -> tuple[LeafComparison, ...]:
        return tuple(leaf for leaf in self.leaves if not leaf.same)

    @property
    def telling(self) -> list[LeafComparison]:
        """The leaves that differ, and those for which a side is blamed, worst first."""
        found = [leaf for leaf in self.leaves if not leaf.same or leaf.blamed is not Blame.NOBODY]
        return sorted(found, key=LeafComparison.badness, reverse=True)

    @property
    def worst(self) -> LeafComparison | None:
        """The leaf to show first: a differing one before a same one, the larger error before the smaller."""
        return max(self.leaves, key=LeafComparison.badness, default=None)

    @property
    def worst_error(self) -> float | None:
        """The largest absolute error of the differing leaves (of all where none differs), if any has one."""
        return max((x.max_abs for x in self.differing or self.leaves if x.max_abs is not None), default=None)

    @property
    def blamed(self) -> Blame:
        """The compiled side if any leaf blames it, else eager if any leaf does, else nobody."""
        return min((leaf.blamed for leaf in self.leaves), key=list(Blame).index, default=Blame.NOBODY)

    def __iter__(self) -> Iterator[LeafComparison]:
        return iter(self.leaves)

    def __str__(self) -> str:
        if self:
            return f"same ({len(self.leaves)} leaves)"
        worst = self.worst
        rest = len(self.differing) - 1
        return f"{worst}" + (f" (and {rest} more)" if rest > 0 else "")

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_comparison

        return html(of_comparison(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: only the leaves that differ or that blame a side, worst first."""
        return {
            "same": bool(self),
            "blamed": self.blamed.value,
            "leaves": len(self.leaves),
            "worst_error": self.worst_error,
            "differing": [
                {JSON_NAMES.get(name, name): value for name, value in msgspec.to_builtins(leaf).items()}
                for leaf in self.telling
            ],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Return the comparison in such data, with the leaves that are in it."""
        names = {told: name for name, told in JSON_NAMES.items()}
        told = data.get("differing", ())
        leaves = [{names.get(name, name): value for name, value in leaf.items()} for leaf in told]
        return msgspec.convert({"leaves": leaves, "notes": data.get("notes", ())}, cls, strict=False)


JSON_NAMES = {
    "ref_value": "eager",
    "res_value": "compiled",
    "truth_value": "truth",
    "rmse_ref": "rmse_eager",
    "rmse_res": "rmse_compiled",
}
"""Fields of `LeafComparison` that JSON calls by another name."""


def as_data(value: Any) -> Any:
    """Return lists, dicts, numbers and text alone. JSON has no inf and no nan: they become words."""
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
    """Random or non-deterministic in a way that cannot be made equal on both sides; or a probe that could
    not be asked."""

    # What only a probe finds (`nouns/probe.py`): the ordinary comparison passes.
    SIZES = "sizes"
    """One compiled artefact is right for some sizes within its guards, and wrong for others."""
    REPEAT = "repeat"
    """The same call of one artefact gives different bits."""
    RECOMPILE = "recompile"
    """Compiled again, or with other choices that must not matter, it is wrong."""
    BATCH = "batch"
    """Right for a whole batch, wrong for a row of it alone."""
    CACHE = "cache"
    """Wrong when it comes from a warm compile cache."""
    HOLD = "hold"
    """A later call changes what an earlier one has returned."""
    THREADS = "threads"
    """Right with some number of threads, wrong with another."""
    SLOW = "slow"
    """Takes more time than the baseline."""
    FAT = "fat"
    """Takes more memory than the baseline."""
    SLOW_COMPILE = "slow_compile"
    """Takes more work to compile than the baseline."""

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
        """Return plain data for JSON."""
        comparison = None if self.comparison is None else self.comparison.to_dict()
        return {**msgspec.to_builtins(self), "comparison": comparison, "blamed": self.blamed.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Return the verdict in such data; of its leaves only those are there that say something."""
        compared = data.get("comparison")
        comparison = None if compared is None else Comparison.from_dict(compared)
        return replace(
            msgspec.convert({**data, "comparison": None}, cls, strict=False), comparison=comparison
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
        """Return whether it is the same failure. An op is compared only where both have one."""
        if self.kind is not other.kind:
            return False
        # The signal that killed a process is known only for our own children.
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
