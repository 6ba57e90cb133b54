"""CPython's tests that are not stepped, each with the reason."""

from __future__ import annotations

LEFT_OUT: dict[str, str] = {}
