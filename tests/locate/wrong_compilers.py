"""Compilers that run the graph in eager, but for one thing that they do wrong; and an oracle for them.

Nothing is compiled and no process is started: what a child would do is done in this one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchrepro.cut.batches import verdicts_of_rounds
from torchrepro.cut.record_values import Recording, observed_values
from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.fresh_process import job_named
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.locate.context import Inquiry
from torchrepro.locate.watched_graph import Watching
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Verdict

Change = Callable[[Node, Any], Any]


class HereOracle:
    """Judges in this process."""

    workers = 1

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            yield index, judge_repro(candidate)

    def record(self, repro: Repro) -> Recording:
        return observed_values(repro, limit=1 << 30)

    def rounds(self, repro: Repro, **options: Any) -> Sequence[Verdict]:
        return verdicts_of_rounds(repro, seconds=60.0, phase=lambda name: None)

    def ran(self, job: str, repro: Repro, **payload: Any) -> Outcome:
        result = job_named(job)(repro, payload, lambda name: None)
        return Outcome(result=json.loads(json.dumps(result)))


def watching_on(
    function: Callable[..., Any], *inputs: Any, compiler: str, repeats: int = 1, **more: Any
) -> Watching:
    """A failing repro of a function, ready to be looked into."""
    repro = Repro(
        torch.fx.symbolic_trace(function), inputs, compiler=Compiler(f"wrong_compilers:{compiler}"), **more
    )
    found = Watching.of(inquiry_on(repro, repeats=repeats))
    assert found is not None
    return found


def inquiry_on(repro: Repro, *, repeats: int = 1) -> Inquiry:
    verdict = next((found for _ in range(repeats) if (found := judge_repro(repro)).fails), None)
    assert verdict is not None, "it does not fail"
    return failing_with(repro, verdict, repeats=repeats)


def failing_with(repro: Repro, verdict: Verdict, *, repeats: int = 1) -> Inquiry:
    """An inquiry into a failure that nobody has seen."""
    return Inquiry(repro, verdict, HereOracle(), repeats=repeats)  # type: ignore[arg-type]


def wrong_relu(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Every relu, however it is called, is a tenth too large."""
    return _changing(graph, lambda node, value: value * 1.1 if "relu" in str(node.target) else value)


def wrong_relu_beside_sin(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The same, but only in a graph that calls sin as well."""
    beside = any(node.target is torch.sin for node in graph.graph.nodes)
    return wrong_relu(graph, inputs) if beside else graph


_RUNS = itertools.count(1)


def wrong_relu_one_time_in_three(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """As what reads memory that another thread writes: each third run in this process is wrong."""
    each: tuple[Callable[..., Any], ...] = (wrong_relu(graph, inputs), Interpreter(graph).run)
    return lambda *args: each[next(_RUNS) % 3 > 0](*args)


def wrong_topk(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    def change(node: Node, value: Any) -> Any:
        return (value[0] + 0.5, value[1]) if node.target is torch.topk else value

    return _changing(graph, change)


def log_of_nothing(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Relu lets negative numbers pass as zeros of the other sign: what divides by them is infinite."""
    return _changing(graph, lambda node, value: value * 0 if node.target is torch.relu else value)


def noisy(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Healthy: every result is off by a rounding or two, as that of another order of summation is."""

    def change(node: Node, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        eps = torch.finfo(value.dtype).eps
        signs = torch.arange(value.numel()).reshape(value.shape) % 2 * 2 - 1
        return value * (1 + 2 * eps * signs.to(value.dtype))

    return _changing(graph, change)


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 3


def wrong_backward(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The value of a relu is right, and its gradient three times too large."""

    def change(node: Node, value: Any) -> Any:
        return _Tripled.apply(value) if node.target is torch.relu else value

    return _changing(graph, change)


def wrong_backward_in_a_region(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The same, but only where the graph itself switches autocast."""
    regions = (torch.amp.autocast_mode._enter_autocast,)
    return wrong_backward(graph, inputs) if any(n.target in regions for n in graph.graph.nodes) else graph


def _changing(graph: GraphModule, change: Change) -> Callable[..., Any]:
    class Changing(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if n.op not in ("call_function", "call_method"):
                return result
            changed = change(n, result)
            if changed is not result and isinstance(n.target, str) and n.target.endswith("_"):
                with torch.no_grad():
                    return result.copy_(changed)
            return changed

    return lambda *args: Changing(graph).run(*args)
