"""Backends with known faults: cheap stand-ins for a compiler, in a module that another process can import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule


def healthy(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    return graph.forward


def raises_while_compiling(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Changes its graph first, as compilers do."""
    for node in list(graph.graph.nodes):
        if node.op == "output":
            node.args = ((),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    raise NotImplementedError("no kernel for this")


def raises_while_running(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Destroys its inputs before it fails."""

    def run(*args: Any) -> Any:
        with torch.no_grad():
            for arg in args:
                if isinstance(arg, torch.Tensor) and arg.is_floating_point():
                    arg.detach().fill_(99.0)
        raise RuntimeError("the kernel failed")

    return run


def raises_from_the_second_call_on(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    calls = []

    def run(*args: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the second replay failed")
        return graph.forward(*args)

    return run


def wrong(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return tuple(out * 1.25 if isinstance(out, torch.Tensor) else out for out in graph.forward(*args))

    return run


def wrong_from_the_third_call_on(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    calls = []

    def run(*args: Any) -> Any:
        calls.append(1)
        return tuple(out * (1.25 if len(calls) > 2 else 1) for out in graph.forward(*args))

    return run


def loses_a_mutation(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return graph.forward(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))

    return run


def crashes_while_compiling(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return graph.forward


def crashes_while_running(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)

    return run


def hangs_while_compiling(graph: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    time.sleep(3600)
    return graph.forward
