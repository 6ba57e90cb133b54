"""What was written down earlier, read again: a bundle's verdict, and the results of `locate` and `minify`.

Any of these files may come from a stranger or another version: what cannot be read is None, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchrepro.bundle.read import LOCATED
from torchrepro.nouns.located import Located
from torchrepro.nouns.minified import Minified
from torchrepro.nouns.verdict import Verdict

Result = TypeVar("Result")

_LARGEST = 64 << 20
"""Bytes of a result: that of a graph with 3,000 nodes has less than one million."""


_FIELDS = {
    "eager": "ref_value",
    "compiled": "res_value",
    "truth": "truth_value",
    "rmse_eager": "rmse_ref",
    "rmse_compiled": "rmse_res",
}
"""What `Comparison.to_dict` calls otherwise than `LeafComparison`."""


def verdict_in(data: Mapping[str, Any] | None) -> Verdict | None:
    """The verdict that `Verdict.to_dict` has written; of its values only those that differ are kept there."""
    if data is None:
        return None
    comparison = data.get("comparison")
    if isinstance(comparison, dict):
        kept = comparison.get("differing", [])
        leaves = [_renamed(leaf) for leaf in kept] if isinstance(kept, list) else kept
        data = {**data, "comparison": {"leaves": leaves, "notes": comparison.get("notes", [])}}
    return _converted(data, Verdict)


def _renamed(leaf: Any) -> Any:
    if not isinstance(leaf, dict):
        return leaf
    return {_FIELDS.get(name, name): value for name, value in leaf.items()}


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
