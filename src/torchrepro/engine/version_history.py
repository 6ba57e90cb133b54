"""What `torchrepro bisect` has found next to a bundle, in words. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrepro.bundle.read import read_small_file

_VERSIONS = ("torch", "python", "wheel")
"""Series of `bisect` whose settings are versions of torch."""


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """What `torchrepro bisect` found next to a bundle, over versions of torch."""

    words: str = ""
    """Empty where there is none."""
    regressed: bool = False
    """A version broke it."""


def version_history(bundle: Path, *, own: bool) -> VersionHistory:
    """Return which version broke it, else which fixed it, else that all that were run fail."""
    whole = bundle.absolute()
    try:
        found = json.loads(read_small_file(whole.with_name(f"{whole.name}.bisected") / "result.json"))
        words = _history(found)
        regressed = found["first_bad"] is not None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return VersionHistory()
    claim = "" if own else " (somebody's claim: nothing in it was verified here)"
    return VersionHistory(f"{words}{claim}", regressed) if words else VersionHistory()


def _history(found: Mapping[str, Any]) -> str:
    """Return words about a series of versions; none about one of compilers or variables."""
    if found["axis"] not in _VERSIONS:
        return ""
    if found["first_bad"] is not None:
        words = f"{_version(found['first_bad'])}, last good {_version(found['last_good'])}"
        between = [change["between"] for change in found["changes"] if change["after"] == found["first_bad"]]
        unknown = ", ".join(str(setting)[:60] for setting in (between[0] if between else ())[:8])
        return f"{words}; {unknown} cannot run" if unknown else words
    ran = [row for row in found["rows"] if row["runs"] and row["state"] != "cannot run"]
    if found["changes"]:
        return f"{_version(ran[0])} or older; {str(found['changes'][-1]['sentence'])[:200]}"
    same = ran and all(row["state"] == "same failure" for row in ran)
    return f"{_version(ran[0])} or older; it fails up to {_version(ran[-1])}" if same else ""


def _version(row: Mapping[str, Any]) -> str:
    commit = str(row.get("commit") or "")[:12]
    return f"{str(row.get('torch') or row['setting'])[:60]}{f' ({commit})' if commit else ''}"
