"""What the tests of scripts share: graphs as capture and AOT leave them, verdicts, and scripts that run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torchrepro.graph_text.metadata import symbols_of
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import (
    Blame,
    Comparison,
    Difference,
    Kind,
    LeafComparison,
    Raised,
    Stage,
    Verdict,
)
from torchrepro.script.candidates import each_script
from torchrepro.script.document import Script
from torchrepro.script.graph_script import GraphScript

ERROR = Verdict(
    Kind.COMPILE_ERROR, Stage.BACKEND, raised=Raised("NotImplementedError", "no lowering for aten.foo")
)


def wrong(
    path: str = "out[0]",
    *,
    eager: str = "1",
    compiled: str = "2",
    difference: Difference = Difference.VALUE,
    **more: Any,
) -> Verdict:
    """A verdict in which one leaf differs."""
    leaf = LeafComparison(
        path,
        difference,
        blamed=Blame.COMPILED,
        ref_value=eager,
        res_value=compiled,
        elements=4,
        mismatched=1,
        max_abs=1.0,
        **more,
    )
    return Verdict(Kind.MISMATCH, Stage.BACKEND, comparison=Comparison((leaf,)))


def captured(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Repro:
    """The graph that Dynamo makes of a call, with the inputs in the order that it wants them."""
    found: list[tuple[GraphModule, list[Any]]] = []

    def backend(graph: GraphModule, example_inputs: list[Any]) -> Any:
        given = [value.node.hint if isinstance(value, torch.SymInt) else value for value in example_inputs]
        found.append((graph, _copies(given)))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*_copies(inputs))
    ((graph, given),) = found
    return Repro(graph, tuple(given), symbols=symbols_of(graph))


def lowered(function: Callable[..., Any], *inputs: Any) -> Repro:
    """The ATen graph of a call, as a backend below AOT is given it."""
    with torch.no_grad():
        return Repro(make_fx(function)(*_copies(inputs)), inputs, Place.AFTER_AOT)


def first_text(repro: Repro, verdict: Verdict, *, exact: bool = False) -> str:
    """The script without its docstring."""
    text = GraphScript(repro, verdict, exact=exact).script().text
    return text.split('"""\n\n', 1)[1]


def scripts_for(repro: Repro, verdict: Verdict) -> list[Script]:
    """All ways to write a repro."""
    return list(each_script(repro, verdict))


def function_of(text: str) -> Callable[..., Any]:
    """The function that a script defines, without anything that the script does."""
    end = text.find("\n\n\n", text.index("def f("))
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    exec(text[text.index("def f(") : end], scope)
    function: Callable[..., Any] = scope["f"]
    return function


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return list(clone_inputs(tuple(inputs)))
