"""Plain data for JSON."""

from __future__ import annotations

from typing import Any


def as_data(value: Any) -> Any:
    """Lists, dicts, numbers and text alone. JSON has no inf and no nan: they become words."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(item) for item in value]
    return value
