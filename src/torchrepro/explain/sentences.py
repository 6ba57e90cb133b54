"""Sentences about numbers that fail and numbers that pass: each names what was tried, and claims no more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchrepro.explain.rules import size_rule, value_rule

_LISTED = 8


def listed(labels: Sequence[str], *, joined: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`; a long list is cut short, and says so."""
    if len(labels) > _LISTED:
        return f"{', '.join(labels[:_LISTED])} {joined} {len(labels) - _LISTED} more"
    *most, last = labels
    return f"{', '.join(most)} {joined} {last}" if most else last


def sentence_on_sizes(failing: Sequence[int], passing: Sequence[int], where: str) -> str:
    """`where` is `in dim 1 of x`."""
    counts = len(set(failing)), len(set(passing))
    if not passing:
        return f"any size from {min(failing)} to {max(failing)} {where} fails ({counts[0]} tried)"
    rule = size_rule(failing, passing)
    if rule is None:
        fails, passes = (listed([str(size) for size in sorted(set(sizes))]) for sizes in (failing, passing))
        return f"of the sizes {where} {fails} fail, {passes} pass"
    if rule.only:
        return f"only size {rule.fails} {where} fails, {rule.passes} ({counts[1]} tried)"
    reach = f", up to {max(failing)}" if rule.fails.startswith(">=") else ""
    words = f"any size {rule.fails}"
    return f"{words} {where} fails ({counts[0]} tried{reach}), {rule.passes} ({counts[1]} tried)"


def sentence_on_values(failing: Sequence[float], passing: Sequence[float], noun: str) -> str:
    """`noun` is `value of x`. Infinities and NaN are named apart: they follow no order."""
    finite = [v for v in failing if math.isfinite(v)], [v for v in passing if math.isfinite(v)]
    counts = len(set(finite[0])), len(set(finite[1]))
    if not finite[0]:
        fails = f"only {listed(_labels(failing))} as {noun} fails"
        return f"{fails}, no other ({len(set(passing))} tried)" if passing else fails
    more = _not_finite(failing, passing)
    if not finite[1]:
        kind = "" if len(finite[1]) == len(passing) else "finite "
        return f"any {kind}{noun} fails ({counts[0]} tried){more}"
    rule = value_rule(*finite)
    if rule is None:
        fails, passes = (listed(_labels(values)) for values in finite)
        return f"as {noun} {fails} fail, {passes} pass{more}"
    if rule.only:
        return f"only {rule.fails} as {noun} fails, {rule.passes} ({counts[1]} tried){more}"
    tried = f" ({counts[1]} tried)" if rule.passes.startswith("no") else ""
    return f"any {noun} {rule.fails} fails ({counts[0]} tried), {rule.passes}{tried}{more}"


def _not_finite(failing: Sequence[float], passing: Sequence[float]) -> str:
    """What to add about infinities and NaN."""
    fails = [value for value in failing if not math.isfinite(value)]
    passes = [value for value in passing if not math.isfinite(value)]
    words = f", {listed(_labels(fails))} too" if fails else ""
    return words + (f", not {listed(_labels(passes), joined='or')}" if passes else "")


def _labels(values: Sequence[float]) -> list[str]:
    return list(dict.fromkeys(f"{value:g}" for value in values))
