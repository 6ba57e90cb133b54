"""The guilty op by pieces: the shortest beginning of the graph that fails; for gradients, the shortest end.

For failures that no op shows alone: each piece keeps the op with all that comes before it, as it was fused.
"""

from __future__ import annotations

from collections.abc import Callable

from torchrepro.cut.subgraph import piece
from torchrepro.cut.units import units_of
from torchrepro.locate.watched_graph import Watching


def last_of_shortest_beginning(watching: Watching, left: Callable[[], int]) -> str | None:
    """The op with which the failure comes; None where it is not found in the compiles that are left."""
    return _edge(watching, left, lambda units, count: units[:count])


def first_of_shortest_end(watching: Watching, left: Callable[[], int]) -> str | None:
    """The op whose backward brings the failure."""
    return _edge(watching, left, lambda units, count: units[len(units) - count :])


def _edge(
    watching: Watching, left: Callable[[], int], part: Callable[[list[list[str]], int], list[list[str]]]
) -> str | None:
    inquiry = watching.inquiry
    recording = watching.recording
    all_units = units_of(watching.static.graph.graph, recording.several)
    units = [list(unit.nodes) for unit in all_units if not unit.is_state]
    # Regions of autocast are in every piece: no op, and the failure may need them.
    regions = [name for unit in all_units if unit.is_state for name in unit.nodes]

    def fails(count: int) -> bool:
        kept = [name for unit in part(units, count) for name in unit]
        cut = piece(watching.static, recording, [*regions, *kept])
        inquiry.on_step(f"cutting the graph to {count} of {len(units)} ops")
        return cut is not None and inquiry.fails(cut)

    fails_with, passes_with = len(units), 0
    # The whole graph once more: cut, it has no symbols and no earlier calls.
    if left() <= 0 or not fails(fails_with):
        return None
    while fails_with - passes_with > 1:
        if left() <= 0:
            return None
        middle = (fails_with + passes_with) // 2
        if fails(middle):
            fails_with = middle
        else:
            passes_with = middle
    new = [unit for unit in part(units, fails_with) if unit not in part(units, passes_with)]
    return new[0][0] if new else None
