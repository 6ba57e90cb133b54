"""The truth table of `same`: pairs of results and what must be said of them. Data, not tests.

Every false pass and every exception of the rule that torch itself uses stands here beside a healthy twin.
"""

from __future__ import annotations

from truth_exotic import EXOTIC, MODES
from truth_numerics import BROKEN, HEALTHY
from truth_objects import OBJECTS
from truth_pair import Pair
from truth_structure import INTEGERS, NON_FINITE, PYTHON_VALUES, STRUCTURE

__all__ = ["PAIRS", "Pair"]

PAIRS: list[Pair] = [
    *(*STRUCTURE, *PYTHON_VALUES, *OBJECTS, *INTEGERS, *NON_FINITE),
    *(*EXOTIC, *HEALTHY, *BROKEN, *MODES),
]
