"""Comparison: where and how two results differ, leaf by leaf; true exactly when they count as the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

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
    both sides. The two RMSE values are against the float64 truth and None where there is none.
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
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    rmse_ref: float | None = None
    rmse_res: float | None = None
    cosine: float | None = None

    @property
    def same(self) -> bool:
        return self.difference is Difference.NONE

    @property
    def where(self) -> LeafPath:
        return LeafPath.parse(self.path)

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
        return sorted(found, key=_badness, reverse=True)

    @property
    def worst(self) -> LeafComparison | None:
        """The leaf to show first: a differing one before a same one, the larger error before the smaller."""
        return max(self.leaves, key=_badness, default=None)

    @property
    def worst_error(self) -> float:
        """The largest absolute error of a differing leaf (of any leaf where all are the same)."""
        leaves = self.differing or self.leaves
        return max((leaf.max_abs for leaf in leaves), default=0.0)

    @property
    def blamed(self) -> Blame:
        """The compiled side if any leaf blames it, else eager if any leaf does, else nobody."""
        blames = {leaf.blamed for leaf in self.leaves}
        for blame in (Blame.COMPILED, Blame.EAGER):
            if blame in blames:
                return blame
        return Blame.NOBODY

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
        """Plain data for JSON: only the leaves that differ or that blame someone, worst first."""
        return {
            "same": bool(self),
            "blamed": self.blamed.value,
            "leaves": len(self.leaves),
            "worst_error": self.worst_error,
            "differing": [_leaf_to_dict(leaf) for leaf in self.telling],
            "notes": list(self.notes),
        }


def _badness(leaf: LeafComparison) -> tuple[bool, int, float]:
    error = leaf.max_rel if leaf.max_rel == leaf.max_rel else float("inf")
    return (not leaf.same, leaf.mismatched, error)


JSON_NAMES = {
    "ref_value": "eager",
    "res_value": "compiled",
    "truth_value": "truth",
    "rmse_ref": "rmse_eager",
    "rmse_res": "rmse_compiled",
}
"""Fields of `LeafComparison` that JSON calls by another name."""


def _leaf_to_dict(leaf: LeafComparison) -> dict[str, Any]:
    found = {JSON_NAMES.get(name, name): value for name, value in asdict(leaf).items()}
    index = None if leaf.index is None else list(leaf.index)
    return {**found, "difference": leaf.difference.value, "blamed": leaf.blamed.value, "index": index}
