"""Record a plain function of tensors: what the tracer does, without its bytecode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakReason, Where
from torchrepro.frontend.source import Local
from torchrepro.frontend.trace.recorder import Captured, Recorder


def new_recorder() -> Recorder:
    return Recorder(lambda: (Where("outer.py", 3, "main"), Where("model.py", 7, "forward")))


def capture(function: Callable[..., Any], *reals: torch.Tensor) -> Captured:
    """The graph of a call; a result that is no tuple is the only output."""
    recorder = new_recorder()
    with recorder.active():
        fakes = [recorder.input(real, Local(f"x{i}"), f"x{i}") for i, real in enumerate(reals)]
        result = function(*fakes)
        return recorder.finish(result if isinstance(result, tuple | list) else (result,))


def replay(captured: Captured) -> tuple[Any, ...]:
    """The graph on the real inputs."""
    return captured.graph_module(*(real for _, real in captured.inputs))


def break_of(function: Callable[..., Any], *reals: torch.Tensor) -> BreakReason:
    try:
        capture(function, *reals)
    except Break as found:
        return found.reason
    raise AssertionError("no break")


def calls(captured: Captured) -> list[str]:
    """The names of what the graph calls, in order."""
    graph = captured.graph_module.graph
    return [
        node.target if isinstance(node.target, str) else node.target.__name__
        for node in graph.nodes
        if node.op.startswith("call")
    ]
