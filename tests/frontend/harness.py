"""One harness: a program runs by Python and captured, and all that can be observed of both is the same.

A *way* runs a function: by Python, by torch's own capture or by ours. What is run comes from several sources:
cases (`corpus/`: one function, three calls), scenes (`backends/scenes/`: a generator that yields what can be
seen), random programs and a world that changes (`differential/`). Observations are facts
(`hunt/observation.py`).
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import pkgutil
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import counters

from tests.frontend.backends import scenes
from tests.frontend.corpus.registry import Case
from torchrepro.frontend.runtime.capture import Region
from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.runtime.wrapping import TracedModule, traced_callable
from torchrepro.hunt.observation import Facts, facts_of, first_difference, observed_call

# Ways


@dataclass(slots=True, eq=False)
class Counting:
    """A backend that runs a captured graph as it is and remembers how many there were, and how big."""

    graphs: list[fx.GraphModule] = field(default_factory=list)
    breaks: Callable[[], list[str]] = list
    """Why graphs ended so far, a reason for each; whoever captures says how that is known."""

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    @property
    def ops(self) -> int:
        return sum(node.op.startswith("call_") for graph in self.graphs for node in graph.graph.nodes)


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
    found: list[tuple[str, bool]] = []

    def note(region: Region) -> None:
        failure = region.failure
        if failure is not None:
            where = failure.where
            reason = f"{failure.reason.text} at {Path(where.file).name}:{where.line} in {where.function}"
            found.append((reason, failure.inside))

    def reasons() -> list[str]:
        # A break inside a called function ends two regions and is one break, unless Python runs the function.
        own = [reason for reason, inside in found if not inside]
        return own + [reason for reason, inside in found if inside and reason not in own]

    counting.breaks = reasons
    settings = Settings(counting, fullgraph=whole, watchers=(note,))
    if isinstance(function, torch.nn.Module):
        return TracedModule(function, settings)
    return traced_callable(function, settings)


WAYS: dict[str, Way] = {"eager": eager, "dynamo": dynamo, "traced": traced}


def under_test() -> Way:
    """Ours. `TORCHREPRO_CORPUS_WAY=dynamo` runs the same tests on torch's own capture, to check the cases."""
    return WAYS[os.environ.get("TORCHREPRO_CORPUS_WAY", "traced")]


# Observations


def assert_same(expected: Sequence[Facts], found: Sequence[Facts], about: str = "") -> None:
    """The same facts, step by step."""
    for number, (right, got) in enumerate(zip(expected, found, strict=False), start=1):
        assert first_difference(right, got) is None, f"step {number}{about}"
    assert len(found) == len(expected)


# Cases

SIZES = (3, 3, 5)
"""Of the first dimension: twice the same with other values, then another."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One call of a case."""

    facts: Facts
    graphs: int
    """Captured for this call."""
    ops: int
    breaks: int
    """Met while it was captured."""


def observe(case: Case, way: Way, *, whole: bool = False, sizes: tuple[int, ...] = SIZES) -> list[Observed]:
    """Run a case. Whatever it changes in its module is put back at the end."""
    counting = Counting()
    with _restored(case):
        call = way(case.function, counting, whole)
        torch.manual_seed(0)
        kept = case.keep()
        return [_one_call(case, call, counting, kept, *each) for each in enumerate(sizes, start=1)]


def _one_call(
    case: Case, call: Callable[..., Any], counting: Counting, kept: tuple[Any, ...], number: int, size: int
) -> Observed:
    torch.manual_seed(number)
    args, keywords = (*kept, *case.make(size)), case.keywords(size)
    random.seed(number)
    torch.manual_seed(number)
    graphs, ops, breaks = len(counting.graphs), counting.ops, len(counting.breaks())

    def state() -> dict[str, Any]:
        return {"global": {name: case.function.__globals__.get(name) for name in case.state}}

    facts = observed_call(call, args, keywords, more=state)
    torch.set_autocast_enabled("cpu", False)  # one `autocast` that is entered twice leaves it on
    return Observed(facts, len(counting.graphs) - graphs, counting.ops - ops, len(counting.breaks()) - breaks)


@contextlib.contextmanager
def _restored(case: Case) -> Iterator[None]:
    globals_ = case.function.__globals__
    before = {name: globals_[name] for name in case.state if name in globals_}
    for name, value in before.items():
        globals_[name] = copy.deepcopy(value)
    try:
        yield
    finally:
        for name in case.state:
            globals_.pop(name, None)
        globals_.update(before)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


# Scenes

Capture = Callable[[Any], Any]
Scene = Callable[[Capture], Iterator[Any]]
"""A program told once and played twice, by Python and by the front end. It yields what can be seen."""

_SCENES: list[Scene] = []


def scene(function: Scene) -> Scene:
    _SCENES.append(function)
    return function


def all_scenes() -> list[Scene]:
    for theme in sorted(info.name for info in pkgutil.iter_modules(scenes.__path__)):
        importlib.import_module(f"{scenes.__name__}.{theme}")
    return list(_SCENES)


def played(play: Scene, capture: Capture) -> list[Facts]:
    """What each step gave, as facts; a step that raises is the last."""
    torch.manual_seed(0)
    random.seed(0)
    told = []
    try:
        for result in play(capture):
            told.append(facts_of({"result": result}))
    except Exception as error:
        told.append(facts_of({"error": error}))
    told.append(facts_of({"generators": (int(torch.get_rng_state().sum()), random.getstate()[1][-1])}))
    return told


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape or (3, 4), generator=torch.Generator().manual_seed(seed))


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gives, or what it raises."""
    try:
        return "gives", call(*args, **kwargs)
    except Exception as error:
        return "raises", error
