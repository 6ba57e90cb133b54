"""Levels 1 and 2 are passive: next to no time, no memory that grows, and no hold on the user's tensors."""

from __future__ import annotations

import gc
import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType

import pytest
import torch

from torchrepro import watch

pytestmark = pytest.mark.slow

Call = Callable[[torch.Tensor], torch.Tensor]

CALLS = 1000


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 1


def compiled() -> Call:
    """Compiled by itself: dynamo keeps compiled code by code object. `eager` is the fastest to call."""
    code = function.__code__.replace(co_name=f"function_{time.monotonic_ns()}")
    call: Call = torch.compile(FunctionType(code, function.__globals__), backend="eager")
    call(torch.ones(8))
    return call


@dataclass(frozen=True)
class Pair:
    """The same function twice."""

    plain: Call
    watched: Call


@pytest.fixture(params=[1, 2])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    plain = compiled()
    with watch(level=request.param, out=tmp_path):
        yield Pair(plain, compiled())
    assert list(tmp_path.iterdir()) == [], "nothing has failed"


def events(call: Call, x: torch.Tensor) -> int:
    """How many functions of Python and C a call calls: the same number, whatever else the machine does."""
    seen = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    call(x)
    sys.setprofile(count)
    try:
        call(x)
    finally:
        sys.setprofile(None)
    return seen


def microseconds(call: Call, x: torch.Tensor) -> float:
    started = time.perf_counter()
    for _ in range(50):
        call(x)
    return (time.perf_counter() - started) / 50 * 1e6


def test_a_watched_call_takes_a_few_steps_more(pair: Pair) -> None:
    x = torch.ones(8)
    assert events(pair.watched, x) - events(pair.plain, x) <= 25


def test_a_watched_call_takes_at_most_ten_microseconds_more(pair: Pair) -> None:
    """Twenty where an accelerator is in use, whose generator has a state too."""
    x = torch.ones(8)
    turns = [(microseconds(pair.plain, x), microseconds(pair.watched, x)) for _ in range(200)]
    # The fastest of many short turns is the one that nothing else disturbed.
    plain, watched = map(min, zip(*turns, strict=True))
    assert watched - plain <= (20 if torch.accelerator.is_available() else 10)


def test_nothing_holds_on_to_inputs_and_outputs(pair: Pair) -> None:
    x = torch.ones(8)
    y = pair.watched(x)
    gone = weakref.ref(x), weakref.ref(y)
    gc.disable()
    try:
        del x, y
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_memory_does_not_grow_with_calls(pair: Pair) -> None:
    def blocks_after_calls() -> int:
        for _ in range(CALLS):
            pair.watched(torch.ones(8))
        gc.collect()
        return sys.getallocatedblocks()

    counts = [blocks_after_calls() for _ in range(6)]
    # What each call kept would show in every turn; caches and other threads allocate in some of them.
    growth = min(after - before for before, after in itertools.pairwise(counts))
    assert growth < CALLS / 10, "an object kept by each call would be a block at least"
