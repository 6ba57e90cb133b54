"""Compilers that are wrong in exactly one way, for the probes to find, and what the tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrepro.execute.judge_repro import judge_repro
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind, Verdict

HERE = "probing"


def repro_of(function: Callable[..., Any], *inputs: Any, compiler: str = "aot_eager", **more: Any) -> Repro:
    name = f"{HERE}:{compiler}" if compiler in globals() else compiler
    return Repro(torch.fx.symbolic_trace(function), inputs, compiler=Compiler(name), **more)


def probed(kind: Kind, repro: Repro, **parameters: Any) -> Verdict:
    from dataclasses import replace

    return judge_repro(replace(repro, probe=Probe(kind, **parameters)))


def _first(call: Callable[[int, list[Any], list[Any]], list[Any]]) -> Callable[..., Any]:
    """Make a backend of `call(number of the call, inputs, outputs of the graph) -> outputs`."""

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        calls = [0]

        def run(*args: Any) -> Any:
            calls[0] += 1
            return tuple(call(calls[0], list(args), list(graph(*args))))

        return run

    return backend


def _rows(inputs: list[Any]) -> int:
    return next(value.shape[0] for value in inputs if isinstance(value, torch.Tensor))


wrong_tail = _first(
    lambda number, inputs, outputs: [
        torch.where(torch.arange(value.shape[0]) >= 16, value * 2, value) for value in outputs
    ]
)
"""Wrong from the 17th element on."""


def _odd(number: int, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    assert _rows(inputs) % 2 == 0, f"wrong size {_rows(inputs)} for stride"
    return outputs


odd_sizes_raise = _first(_odd)
third_call = _first(
    lambda number, inputs, outputs: [value + (number == 3) * 1e-6 for value in outputs],
)
"""Other bits in the third call, far within the rule."""
unordered = _first(
    lambda number, inputs, outputs: [
        value + (number % 2) * 1e-7 * (not torch.are_deterministic_algorithms_enabled()) for value in outputs
    ]
)
"""Rounds otherwise in every second call, unless deterministic algorithms are asked for."""
alone_is_wrong = _first(
    lambda number, inputs, outputs: [value * (2 if _rows(inputs) == 1 else 1) for value in outputs]
)
"""Wrong for a batch of one row."""
three_threads = _first(
    lambda number, inputs, outputs: [value + (torch.get_num_threads() == 3) for value in outputs]
)
"""Wrong in a process with three threads."""


def same_memory(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Return the results of all calls in the memory of the first ones."""
    memory: list[torch.Tensor] = []

    def run(*args: Any) -> Any:
        outputs = [value.detach() for value in graph(*args)]
        if not memory:
            memory.extend(value.clone() for value in outputs)
        return tuple(kept.copy_(value) for kept, value in zip(memory, outputs, strict=True))

    return run


compilations: list[int] = []


def second_compilation(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Compile wrongly each time but the first."""
    compilations.append(1)
    factor = 1 if len(compilations) == 1 else 2
    return lambda *args: tuple(value * factor for value in graph(*args))


def lazy(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Compute everything twenty times."""

    def run(*args: Any) -> Any:
        return [graph(*args) for _ in range(20)][-1]

    return run


def greedy(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Take eight MiB more than the graph does."""

    def run(*args: Any) -> Any:
        more = torch.empty(8 << 20, dtype=torch.uint8)
        outputs = graph(*args)
        del more
        return outputs

    return run


def pondering(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Compile for more than a second of CPU time."""
    import time

    until = time.process_time() + 1.5
    while time.process_time() < until:
        pass
    return graph


def unwritten(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Read memory that nothing has written, and is often zero."""

    def run(*args: Any) -> Any:
        unknown = torch.empty(4096).abs().nan_to_num().clamp(max=1.0)[100]
        return [value * (1 + 1e-6 * unknown) for value in graph(*args)]

    return run
