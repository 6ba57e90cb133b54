"""Ways: how a function is run: by Python, by torch's own capture or by ours. The only place with `trace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from tests.frontend.corpus.counting import Counting
from torchrepro.second_opinion.api import trace

Way = Callable[[Callable[..., Any], Counting, bool], Callable[..., Any]]
"""From a function, the backend and whether no break is allowed, to what is called instead of it."""


def eager(function: Callable[..., Any], counting: Counting, whole: bool) -> Callable[..., Any]:
    return function


def dynamo(function: Callable[..., Any], counting: Counting, whole: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    counters.clear()
    counting.breaks = lambda: list(counters["graph_break"].elements())
    return torch.compile(function, backend=counting, fullgraph=whole, dynamic=False)


def traced(function: Callable[..., Any], counting: Counting, whole: bool) -> Callable[..., Any]:
    call = trace(function, backend=counting, fullgraph=whole)
    reasons: list[str] = []

    def note(region: Any) -> None:
        # A break inside a function that is called ends two regions; it is one break.
        failure = region.failure
        if failure is not None and not failure.inside:
            where = failure.where
            reasons.append(
                f"{failure.reason.text} at {Path(where.file).name}:{where.line} in {where.function}"
            )

    call._settings.watchers.append(note)
    counting.breaks = lambda: reasons
    return call


WAYS: dict[str, Way] = {"eager": eager, "dynamo": dynamo, "traced": traced}


def under_test() -> Way:
    """Ours. `TORCHREPRO_CORPUS_WAY=dynamo` runs the same tests on torch's own capture, to check the cases."""
    return WAYS[os.environ.get("TORCHREPRO_CORPUS_WAY", "traced")]
