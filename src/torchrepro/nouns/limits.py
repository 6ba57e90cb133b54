"""Limits: for which numbers a repro fails, as far as numbers were tried. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

Range = tuple[float | None, float | None]
"""Both ends included; None: nothing beyond was seen to pass."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers between those that were seen to fail, none of those seen to pass among them."""

    ranges: tuple[Range, ...] = ()
    multiple_of: int = 0
    """Only multiples of it fail; 0: no such pattern."""
    not_multiple_of: int = 0
    """Only numbers that are not multiples of it fail."""
    others: tuple[str, ...] = ()
    """Which of `nan`, `inf` and `-inf` fail."""

    def admits(self, number: float) -> bool:
        if not math.isfinite(number):
            return f"{number:g}" in self.others
        if self.multiple_of and number % self.multiple_of:
            return False
        if self.not_multiple_of and number % self.not_multiple_of == 0:
            return False
        return any(
            (low is None or low <= number) and (high is None or number <= high) for low, high in self.ranges
        )

    def __str__(self) -> str:
        words = " or ".join(filter(None, (_range_in_words(low, high) for low, high in self.ranges)))
        pattern = f"multiple of {self.multiple_of}" if self.multiple_of else ""
        pattern = f"no multiple of {self.not_multiple_of}" if self.not_multiple_of else pattern
        told = ", ".join(filter(None, (words, pattern)))
        return " or ".join(filter(None, (told, *self.others))) or "any"


def _range_in_words(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if low is None:
        return f"<= {high:g}"
    if high is None:
        return f">= {low:g}"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
