"""Decompose composite ops (`layer_norm`, made of `var_mean`, `rsqrt` and `mul`) by tracing on fake tensors.

The result is the same but for the last bits: eager often has one kernel for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.func import functionalize
from torch.fx import GraphModule, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.surgery import Inside, expanded, has_effects
from torchrepro.judge.op_forms import draws_now, is_random_op
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.state.fake_run import Decompositions, OperatorLog, inductor_decompositions, run_on_fakes
from torchrepro.torch_api.fake import make_fx
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, schema_of
from torchrepro.torch_api.pytree import tree_leaves


def expanded_everywhere(repro: Repro) -> list[Repro]:
    """Return the repro with every op opened, with and without inductor's decompositions, if any can be."""
    values = run_on_fakes(repro).by_name
    found: dict[str, Repro] = {}
    for table in (inductor_decompositions(), {}):
        opened = expanded(repro, partial(_inside, repro, values, table))
        if opened is not None:
            targets = [str(node.target) for node in opened.graph.graph.nodes if node.op in CALLS]
            found.setdefault(" ".join(targets), opened)
    return list(found.values())


def _inside(
    repro: Repro, values: Mapping[str, Any], table: Decompositions, module: GraphModule, node: Node
) -> Inside | None:
    operands = node.all_input_nodes
    if not _is_openable(node) or not all(operand.name in values for operand in operands):
        return None
    body = _traced(repro, node, [values[operand.name] for operand in operands], table)
    if body is None or not _is_more(node, body):
        return None
    if repro.place is Place.AFTER_CAPTURE:
        _use_public_names(body)
    return Inside(body, operands)


def _is_openable(node: Node) -> bool:
    target: Any = node.target
    if node.op not in ("call_function", "call_method") or has_effects(node):
        return False
    return not isinstance(target, HigherOrderOperator) and getattr(target, "__module__", "") != "_operator"


def _traced(repro: Repro, node: Node, fakes: Sequence[Any], table: Decompositions) -> GraphModule | None:
    """Return the ops that an op consists of, as a graph over its operands; None if it cannot be traced."""
    order = {operand: place for place, operand in enumerate(node.all_input_nodes)}

    def call(*operands: Any) -> Any:
        args = torch.fx.map_arg(node.args, lambda operand: operands[order[operand]])
        kwargs = torch.fx.map_arg(node.kwargs, lambda operand: operands[order[operand]])
        if node.op == "call_method":
            result = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        return tuple(result) if isinstance(result, tuple | list) else result

    def traces(function: Callable[..., Any]) -> GraphModule:
        return make_fx(function, decomposition_table=dict(table), tracing_mode="fake")(*fakes)

    try:
        with applied_modes(repro.ambient), torch.no_grad():
            traced = traces(call)
            if any(map(has_effects, traced.graph.nodes)):
                # `rms_norm` and `lstm_cell` write to what they have computed.
                traced = traces(functionalize(traced))
    except Exception:
        # An op may raise anything on fake tensors: then it is not opened.
        return None
    traced.graph.eliminate_dead_code()
    return traced if all(map(_is_repeatable, traced.graph.nodes)) else None


def _is_repeatable(node: Node) -> bool:
    """Return whether a traced node is neither random nor a constant of the trace, and writes nothing."""
    if node.op in ("placeholder", "output"):
        return True
    target: Any = node.target
    if node.op != "call_function" or has_effects(node):
        return False
    return not (
        isinstance(target, OpOverload) and is_random_op(target) and draws_now(target, node.args, node.kwargs)
    )


def _is_more(node: Node, inside: GraphModule) -> bool:
    """Return whether there is more than one op inside."""
    ops = [inner for inner in inside.graph.nodes if inner.op == "call_function"]
    own = isinstance(node.target, OpOverload) and [inner.target for inner in ops] == [node.target]
    return not own and len([inner for inner in ops if isinstance(inner.target, OpOverload)]) > 1


def _use_public_names(module: GraphModule) -> None:
    """Replace ATen calls by `torch.rsqrt(x)` or `x.view(...)`, where that calls the same op and no other."""
    for node in module.graph.nodes:
        target: Any = node.target
        name = schema_of(target).name.removeprefix("aten::") if isinstance(target, OpOverload) else "_"
        if name.startswith("_") or not name.isidentifier():
            continue
        if _calls(getattr(torch, name, None), node) == [target]:
            node.target = getattr(torch, name)
        elif _calls(getattr(torch.Tensor, name, None), node) == [target]:
            node.op, node.target = "call_method", name


def _calls(function: Any, node: Node) -> list[Any]:
    """Return the ops that a function calls with the arguments of a node."""

    def value(operand: Node) -> Any:
        return operand.meta.get("val")

    args, kwargs = torch.fx.map_arg(node.args, value), torch.fx.map_arg(node.kwargs, value)
    mode = next((arg.fake_mode for arg in tree_leaves(args) if hasattr(arg, "fake_mode")), None)
    if mode is None or function is None:
        return []
    seen = OperatorLog(aliases=True)
    try:
        with torch.no_grad(), mode, seen:
            function(*args, **kwargs)
    except Exception:
        # It takes other arguments, so it is not the same function.
        return []
    return seen.ops
