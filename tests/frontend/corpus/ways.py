"""Ways: how a function is run: by Python, by torch's own capture or by ours. The only place with `trace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tests.frontend.corpus.counting import Counting

Way = Callable[[Callable[..., Any], Counting, bool], Callable[..., Any]]
"""From a function, the backend and whether no break is allowed, to what is called instead of it."""


def eager(function: Callable[..., Any], counting: Counting, whole: bool) -> Callable[..., Any]:
    return function


def dynamo(function: Callable[..., Any], counting: Counting, whole: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=counting, fullgraph=whole, dynamic=False)


def traced(function: Callable[..., Any], counting: Counting, whole: bool) -> Callable[..., Any]:
    from torchrepro.frontend.api import trace

    return trace(function, backend=counting, fullgraph=whole)


WAYS: dict[str, Way] = {"eager": eager, "dynamo": dynamo, "traced": traced}


def tested() -> Way:
    """Ours. `TORCHREPRO_CORPUS_WAY=dynamo` runs the same tests on torch's own capture, to check the cases."""
    return WAYS[os.environ.get("TORCHREPRO_CORPUS_WAY", "traced")]
