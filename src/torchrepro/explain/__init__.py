"""What of a minimal repro matters and what does not, found by variation; and the nearest one that passes."""

from torchrepro.explain.experiment import Budget
from torchrepro.explain.explain import explain
from torchrepro.nouns.results import Explanation, Fact, Neighbour

__all__ = ["Budget", "Explanation", "Fact", "Neighbour", "explain"]
