"""CPython's tests that are not stepped, each with the reason: what they ask for is not in a stepped program."""

from __future__ import annotations

LEFT_OUT: dict[str, str] = {}
