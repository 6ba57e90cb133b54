"""What was written down earlier, read again: a bundle's verdict, and the results of `locate` and `minify`.

Any of these files may come from a stranger or another version: what cannot be read is None, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchrepro.bundle.read import LOCATED
from torchrepro.comparison import Blame, Comparison, Difference, LeafComparison
from torchrepro.locate.answer import Located
from torchrepro.minify.session.result import Minified
from torchrepro.verdict import Kind, Raised, Stage, Verdict

Result = TypeVar("Result")

_LARGEST = 64 << 20
"""Bytes of a result: that of a graph with 3,000 nodes has less than one million."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf as `Comparison.to_dict` writes it."""

    path: str = ""
    difference: Difference = Difference.NONE
    detail: str = ""
    blamed: Blame = Blame.NOBODY
    index: tuple[int, ...] | None = None
    eager: str = ""
    compiled: str = ""
    truth: str = ""
    elements: int = 0
    mismatched: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    rmse_eager: float | None = None
    rmse_compiled: float | None = None
    cosine: float | None = None

    def read(self) -> LeafComparison:
        return LeafComparison(
            path=self.path,
            difference=self.difference,
            detail=self.detail,
            blamed=self.blamed,
            index=self.index,
            ref_value=self.eager,
            res_value=self.compiled,
            truth_value=self.truth,
            elements=self.elements,
            mismatched=self.mismatched,
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            max_ulp=self.max_ulp,
            rmse_ref=self.rmse_eager,
            rmse_res=self.rmse_compiled,
            cosine=self.cosine,
        )


@dataclass(frozen=True, slots=True)
class _Comparison:
    differing: tuple[_Leaf, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A verdict as `Verdict.to_dict` writes it."""

    kind: Kind
    stage: Stage = Stage.NONE
    summary: str = ""
    raised: Raised | None = None
    signal: str = ""
    comparison: _Comparison | None = None
    notes: tuple[str, ...] = ()
    stderr_tail: str = ""
    seconds: float = 0.0


def verdict_in(data: Mapping[str, Any] | None) -> Verdict | None:
    """The verdict that `Verdict.to_dict` has written; of its values only those that differ are kept there."""
    found = _converted(data, _Verdict)
    if found is None:
        return None
    comparison = None
    if found.comparison is not None:
        leaves = tuple(leaf.read() for leaf in found.comparison.differing)
        comparison = Comparison(leaves, found.comparison.notes)
    return Verdict(
        kind=found.kind,
        stage=found.stage,
        summary=found.summary,
        raised=found.raised,
        signal=found.signal,
        comparison=comparison,
        notes=found.notes,
        stderr_tail=found.stderr_tail,
        seconds=found.seconds,
    )


def located_at(bundle: Path) -> Located | None:
    """What `torchrepro locate` has found out about a bundle: in it, or beside it where it is a file."""
    for directory in located_directories(bundle):
        found = _converted(_json_in(directory / "result.json"), Located)
        if found is not None:
            return found
    return None


def located_directories(bundle: Path) -> tuple[Path, ...]:
    """Where `torchrepro locate` may have put its answer: in the bundle, beside it, or where we are."""
    whole = bundle.absolute()
    name = f"{whole.stem if whole.suffix == '.zip' else whole.name}.{LOCATED}"
    return whole / LOCATED, whole.with_name(name), Path.cwd() / name


def minified_in(directory: Path) -> Minified | None:
    """The result of `torchrepro minify` in its directory."""
    return _converted(_json_in(directory / "result.json"), Minified)


def _json_in(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _converted(data: Any, wanted: type[Result]) -> Result | None:
    if data is None:
        return None
    try:
        # Not strict: infinity and NaN are words there (`plain.as_data`).
        return msgspec.convert(data, wanted, strict=False)
    except msgspec.ValidationError:
        return None
