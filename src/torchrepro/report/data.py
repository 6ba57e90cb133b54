"""The report as data: what `--format json` writes, and `--against` reads. Described in docs/reporting.md."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from torchrepro import __version__
from torchrepro.plain import as_data
from torchrepro.report.contents import Contents

FORMAT = 1
"""Raised whenever a field changes its meaning; new fields do not raise it."""


def as_json(contents: Contents) -> str:
    """One JSON object, complete. Infinity and NaN are the words "inf", "-inf" and "nan"."""
    return json.dumps(data_of(contents), indent=1, allow_nan=False) + "\n"


def data_of(contents: Contents) -> dict[str, Any]:
    """The contents as plain data; verdict and located as `check --json` and `locate --json` have them."""
    found: dict[str, Any] = as_data(asdict(contents))
    if contents.verdict is not None:
        found["verdict"] = as_data(contents.verdict.to_dict())
    if contents.located is not None:
        found["located"] = contents.located.to_dict()
    return {"format": FORMAT, "torchrepro": __version__, **found}
