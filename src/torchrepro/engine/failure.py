"""Failure: what a candidate has to show to count as the same failure as the original.

The signature tells exceptions, crashes and hangs apart. For wrong values it says only "mismatch", so here it
is also asked what is wrong and where. What counts is the worst difference: a stride that differs beside a
wrong value is an accident. And a wrong result makes the gradients wrong, too; gradients that are wrong
beside right results are another failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchrepro.nouns.comparison import Comparison, Difference
from torchrepro.nouns.signature import Signature
from torchrepro.nouns.verdict import Kind, Verdict

_GRADIENT = "grad"


@dataclass(frozen=True, slots=True)
class Failure:
    """The original's failure. `differences` and `places` are empty where no values were compared."""

    signature: Signature
    differences: frozenset[Difference] = frozenset()
    """In what way the worst leaf differs; a value that is not finite is worse than any other."""
    places: frozenset[str] = frozenset()
    """Where leaves differ in that way: `out`, `inputs`, `state`, `python`, or `grad` alone."""

    @classmethod
    def of(cls, verdict: Verdict) -> Failure:
        signature, comparison = Signature.of(verdict), verdict.comparison
        worst = None if comparison is None else comparison.worst
        if comparison is None or worst is None or worst.same:
            return cls(signature)
        telling = Difference.NON_FINITE if verdict.kind is Kind.NON_FINITE else worst.difference
        return cls(signature, frozenset({telling}), _places(comparison, telling))

    def shown_by(self, verdict: Verdict) -> bool:
        """Whether a verdict shows this failure, and not another one."""
        if not verdict.fails or not self.signature.matches(Signature.of(verdict)):
            return False
        if not self.differences or verdict.comparison is None:
            return True
        return any(self.places & _places(verdict.comparison, difference) for difference in self.differences)


def _places(comparison: Comparison, difference: Difference) -> frozenset[str]:
    """The first words of the paths of leaves that differ in this way; of gradients, if there is no other."""
    found = {leaf.where.part for leaf in comparison.differing if leaf.difference is difference}
    return frozenset(found - {_GRADIENT} or found)
