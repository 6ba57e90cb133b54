"""Where the error grows most: the plot of error growth as a short table, for who cannot see the plot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchrepro.locate.answer import Growth

_ROWS = 8


def worst_growth(growth: Sequence[Growth]) -> list[Growth]:
    """The nodes at which the compiled side is worst against eager, in the order of the graph."""
    known = [point for point in growth if point.eager is not None and point.compiled is not None]
    worst = sorted(known, key=_excess, reverse=True)[:_ROWS]
    chosen = {id(point) for point in worst}
    return [point for point in known if id(point) in chosen]


def _excess(point: Growth) -> float:
    """How many orders of magnitude compiled is further from the truth; errors below 1e-20 are none."""
    eager, compiled = point.eager or 0.0, point.compiled or 0.0
    if math.isnan(compiled):
        return math.inf
    if math.isnan(eager) or math.isinf(eager):
        return -math.inf
    return math.log10(max(compiled, 1e-20)) - math.log10(max(eager, 1e-20))
