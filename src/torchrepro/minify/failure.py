"""Failure: what a candidate has to show to count as the same failure as the original.

The signature tells exceptions, crashes and hangs apart. For wrong values it says only "mismatch", so here it
is also asked what is wrong (a value, a shape, a dtype) and where (a result, a gradient, an input written to).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchrepro.comparison import Comparison, Difference
from torchrepro.signature import Signature
from torchrepro.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Failure:
    """The original's failure. `differences` and `places` are empty where no values were compared."""

    signature: Signature
    differences: frozenset[Difference] = frozenset()
    places: frozenset[str] = frozenset()

    @classmethod
    def of(cls, verdict: Verdict) -> Failure:
        return cls(Signature.of(verdict), _differences(verdict.comparison), _places(verdict.comparison))

    def shown_by(self, verdict: Verdict) -> bool:
        """Whether a verdict shows this failure, and not another one."""
        if not verdict.fails or not self.signature.matches(Signature.of(verdict)):
            return False
        return _meet(self.differences, _differences(verdict.comparison)) and _meet(
            self.places, _places(verdict.comparison)
        )


def _meet(wanted: frozenset[Any], found: frozenset[Any]) -> bool:
    return not wanted or not found or bool(wanted & found)


def _differences(comparison: Comparison | None) -> frozenset[Difference]:
    return frozenset() if comparison is None else frozenset(leaf.difference for leaf in comparison.differing)


def _places(comparison: Comparison | None) -> frozenset[str]:
    """The first words of the paths: `out`, `grad`, `inputs`, `state`, `python`."""
    if comparison is None:
        return frozenset()
    return frozenset(leaf.path.partition(".")[0].partition("[")[0] for leaf in comparison.differing)
