"""Real graphs for tests: what Dynamo captures and what AOT makes of it, without compiling anything."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Captured:
    """A graph, where it was taken, and the real inputs it was called with."""

    place: str
    graph: GraphModule
    inputs: tuple[Any, ...]


def capture(
    function: Callable[..., Any],
    *args: Any,
    backward: bool = False,
    inductor_decompositions: bool = False,
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> list[Captured]:
    """Every graph on the way from Python to a backend: `dynamo`, `forward`, `backward`, `inference`."""
    found: list[Captured] = []

    def compiler(place: str) -> Callable[[GraphModule, Any], Any]:
        def compile_(graph: GraphModule, _: Any) -> Any:
            kept = _copy(graph)

            def run(arguments: list[Any]) -> Any:
                found.append(Captured(place, kept, tuple(arguments)))
                return torch.fx.Interpreter(graph).boxed_run(list(arguments))

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_

    def backend(graph: GraphModule, inputs: list[Any]) -> Any:
        kept = _copy(graph)
        compiled = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=_decompositions() if inductor_decompositions else None,
        )(graph, inputs)

        def run(*arguments: Any) -> Any:
            found.append(Captured("dynamo", kept, arguments))
            return compiled(*arguments)

        return run

    torch._dynamo.reset()
    result = torch.compile(function, backend=backend, **options)(*args, **(kwargs or {}))
    if backward:
        result = result.to_tuple() if hasattr(result, "to_tuple") else result
        leaves = [
            leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        sum(leaf.float().sum() for leaf in leaves).backward()  # type: ignore[union-attr]
    return found


def _copy(graph: GraphModule) -> GraphModule:
    """The graph as it is now: AOT changes the one it is given. Constants are real also while AOT traces."""
    with unset_fake_temporarily():
        return copy.deepcopy(graph)


def _decompositions() -> Any:
    importlib.import_module("torch._inductor.lowering")  # decompositions use it without importing it
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()
