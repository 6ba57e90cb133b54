"""What of a minimal repro matters and what does not, found by variation; and the nearest one that passes."""

from torchrepro.minify.explain.explaining import explain
from torchrepro.minify.explain.explanation import Explanation, Fact, Neighbour
from torchrepro.minify.explain.laboratory import Budget, JudgeMany
from torchrepro.minify.explain.many import judging_many

__all__ = ["Budget", "Explanation", "Fact", "JudgeMany", "Neighbour", "explain", "judging_many"]
