"""Rows of the tables of the environment and of the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torchrepro.environment import Environment
from torchrepro.plain import as_data

_NAMES = {
    "cpu": "CPU",
    "cpu_capability": "CPU capability",
    "gpus": "GPUs",
    "cuda": "CUDA",
    "cxx": "C++ compiler",
}


def environment_rows(environment: Environment | None) -> list[tuple[str, str]]:
    """Name and value of all that is known."""
    if environment is None:
        return []
    rows = []
    for field in fields(environment):
        value = getattr(environment, field.name)
        shown = ", ".join(value) if isinstance(value, tuple) else str(value or "")
        if shown:
            rows.append((_NAMES.get(field.name, field.name), shown))
    return rows


def setting_rows(settings: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """A row for each setting; nested ones have dotted names."""
    rows: list[tuple[str, str]] = []
    for name, value in (settings or {}).items():
        if isinstance(value, Mapping) and value:
            rows.extend((f"{name}.{inner}", shown) for inner, shown in setting_rows(value))
        else:
            rows.append(
                (str(name), value if isinstance(value, str) else json.dumps(as_data(value), default=str))
            )
    return rows
