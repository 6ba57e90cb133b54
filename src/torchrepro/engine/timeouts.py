"""Timeout: how long a candidate may take before it counts as hanging.

A multiple of what the baseline took. Where the failure itself is a hang each failing candidate costs the
whole limit, so there it is learnt from the candidates that terminate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrepro.nouns.verdict import Kind, Verdict

_FLOOR = 20.0
_HANG_FLOOR = 8.0


@dataclass(eq=False)
class Timeout:
    """The limit for the next candidate, in seconds."""

    original: float
    """Seconds that the baseline may take, or took."""
    hangs: bool = False
    _ended: list[float] = field(default_factory=list)

    @classmethod
    def after(cls, verdict: Verdict) -> Timeout:
        """Return the timeout that follows from the verdict on the baseline."""
        return cls(verdict.seconds, hangs=verdict.kind is Kind.HANG)

    @property
    def limit(self) -> float:
        if not self.hangs:
            return max(_FLOOR, 4 * self.original + 10)
        slowest = max(self._ended, default=_HANG_FLOOR / 2)
        return min(max(_HANG_FLOOR, 3 * slowest), max(_HANG_FLOOR, self.original))

    def learn(self, verdict: Verdict) -> None:
        """Take a candidate into account that terminated."""
        if verdict.kind is not Kind.HANG:
            self._ended.append(verdict.seconds)
