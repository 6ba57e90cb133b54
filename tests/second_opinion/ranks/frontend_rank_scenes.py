"""What two ranks do in each scene: `scene(rank, group)` returns what it saw; what it raises is seen too."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from torchrepro.frontend.trace.tracer import Stop
from torchrepro.second_opinion.api import trace
from torchrepro.second_opinion.lock_step import Collective, Proposal, collective_of

ENTRY = "step at model.py:3"
TIMEOUT = 20.0


def side_of(group: Any = None) -> Collective:
    found = collective_of(group)
    assert found is not None
    return found


def misses(miss: bool, group: Any, entry: str = ENTRY, timeout: float = TIMEOUT) -> bool:
    return side_of(group).any_misses(entry, miss, "", timeout)


def negotiated(rank: int, group: Any, ops: list[str], breaks: set[int]) -> dict[str, Any]:
    """A stand-in for the tracer: the region ends at the first break."""
    known = frozenset(Stop(index, 1) for index in breaks)
    traces = 0
    while True:
        traces += 1
        graph = tuple(ops[: min((stop.index for stop in known), default=len(ops))])
        union = side_of(group).run_compiler_collective(Proposal(ENTRY, known, graph, str(graph)), TIMEOUT)
        if union is None:
            return {"graph": graph, "traces": traces}
        known = union


def same(rank: int, group: Any) -> dict[str, Any]:
    value = torch.ones(1)
    dist.all_reduce(value)  # the user's own collectives go on beside ours
    return {**negotiated(rank, group, ["linear", "relu"], set()), "sum": float(value)}


def one_more_break(rank: int, group: Any) -> dict[str, Any]:
    return negotiated(rank, group, ["linear", "relu", "sin"], {2} if rank == 1 else set())


def different_branches(rank: int, group: Any) -> dict[str, Any]:
    return negotiated(rank, group, ["linear", "relu" if rank == 0 else "sin"], set())


def guard_miss_on_one(rank: int, group: Any) -> dict[str, Any]:
    return {"recompiles": [misses(miss and rank == 1, group) for miss in (False, True, False)]}


def failing(rank: int, group: Any) -> dict[str, Any]:
    if rank == 0:
        side_of(group).fail(ENTRY, ValueError("boom"), TIMEOUT)
        return {}
    return negotiated(rank, group, ["linear"], set())


def late(rank: int, group: Any) -> dict[str, Any]:
    if rank == 1:
        time.sleep(1.5)
    misses(False, group, timeout=1.0)
    return {}


def dying(rank: int, group: Any) -> dict[str, Any]:
    """The last scene: after it there is one rank."""
    misses(False, group)
    if rank == 1:
        os._exit(1)
    misses(False, group)
    return {}


def store_dying(rank: int, group: Any) -> dict[str, Any]:
    """The same, with the rank that keeps the store."""
    misses(False, group)
    if rank == 0:
        os._exit(1)
    misses(False, group)
    return {}


# Functions that are really traced; `RANK` is what makes the ranks differ.

RANK = 0


def alike(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin())


def by_rank(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return torch.relu(y) if RANK == 0 else torch.cos(y)


def note(x: torch.Tensor) -> torch.Tensor:
    if RANK == 1:
        print("rank 1 says something")
    return x * 2


def noting(x: torch.Tensor) -> torch.Tensor:
    return note(x.sin()).cos()


def by_data(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() > 0:
        return y + 1
    return y - 1


def unlucky(x: torch.Tensor) -> torch.Tensor:
    return x.tan()


def traced(
    function: Any, rank: int, inputs: list[torch.Tensor], failing: int | None = None
) -> dict[str, Any]:
    """Call it in lock step; what it returned, and how many graphs were compiled on the way."""
    globals()["RANK"] = rank
    compiled = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        if rank == failing:
            raise ValueError("boom")
        compiled.append(graph)
        return graph.forward

    captured = trace(function, backend=backend, ranks="agree")
    outputs, graphs = [], []
    for x in inputs:
        outputs.append(torch.allclose(captured(x), function(x)))
        graphs.append(len(compiled))
    return {"right": outputs, "graphs": graphs}


def traced_alike(rank: int, group: Any) -> dict[str, Any]:
    return traced(alike, rank, [torch.ones(2), torch.ones(2)])


def traced_by_rank(rank: int, group: Any) -> dict[str, Any]:
    return traced(by_rank, rank, [torch.ones(2)])


def traced_break_on_one(rank: int, group: Any) -> dict[str, Any]:
    return traced(noting, rank, [torch.ones(2), torch.ones(2)])


def traced_miss_on_one(rank: int, group: Any) -> dict[str, Any]:
    return traced(alike, rank, [torch.ones(2), torch.ones(2 + rank), torch.ones(2)])


def traced_by_data(rank: int, group: Any) -> dict[str, Any]:
    return traced(by_data, rank, [torch.ones(2), torch.ones(2) * (1 - 2 * rank)])


def traced_failing_on_one(rank: int, group: Any) -> dict[str, Any]:
    found = traced(unlucky, rank, [torch.ones(2)], failing=1)
    misses(False, None, entry="what comes next")
    return found
