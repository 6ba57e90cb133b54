"""Ranks: what a region is about to compile, told to the other ranks of a distributed job before it is compiled."""

from __future__ import annotations

from typing import Any


def agree_on(*args: Any) -> bool:
    return True
