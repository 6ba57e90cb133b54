"""Open ops: inline the graphs of higher-order ops, decompose composite ops.

Where a higher-order op runs its graph once (`invoke_subgraph`, a checkpoint, the branch of a `cond`) the
result is the same. A loop becomes one iteration of it; where that does not run, the loop stays. A composite
op (`layer_norm`, made of `var_mean`, `rsqrt` and `mul`) is traced on fake tensors. The result is the same but
for the last bits: eager often has one kernel for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.surgery import Inside, expanded, has_effects, is_called, reach
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.state.fake_run import Decompositions, OperatorLog, inductor_decompositions, run_on_fakes
from torchrepro.torch_api.fake import make_fx
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, schema_of
from torchrepro.torch_api.pytree import tree_leaves

_DEPTH = 8
_BODIES = {"cond": slice(0, 2), "while_loop": slice(1, 2), "autograd_function_apply": slice(0, 1)}
"""Which of its graphs an op with several of them runs in the forward direction."""
_LOOPS = ("while_loop", "scan", "map_impl", "associative_scan")


def nested_calls(repro: Repro) -> list[str]:
    """Return the nodes of a graph that can be replaced by the ops of a nested graph."""
    return [node.name for node in repro.graph.graph.nodes if _insides(repro.graph, node)]


def branches(repro: Repro) -> dict[str, str]:
    """Return the `cond` nodes, each with the node of its predicate: True takes the first graph."""
    return {
        node.name: node.args[0].name
        for node in repro.graph.graph.nodes
        if is_called(node, "cond") and isinstance(node.args[0], Node)
    }


def inlined(repro: Repro, names: Collection[str], second: Collection[str] = ()) -> Repro | None:
    """Return the repro with these higher-order ops, and those in their graphs, inlined; None if none can be.

    A `cond` becomes its first branch, one in `second` its other branch.
    """

    def inside(module: GraphModule, node: Node) -> Inside | None:
        found = _insides(module, node) if node.name in names else []
        return found[-1 if node.name in second else 0] if found else None

    found = repro
    for _ in range(_DEPTH):
        before = {node.name for node in found.graph.graph.nodes}
        following = expanded(found, inside)
        if following is None:
            break
        # Next, inline the higher-order ops among the nodes that were inlined.
        names = {node.name for node in following.graph.graph.nodes} - before
        found = following
    return None if found is repro else found


def _insides(module: GraphModule, node: Node) -> list[Inside]:
    """Return the graphs that can replace a node, each with its operands; those of a `cond` in their order.

    Most higher-order ops have one graph, which is called with the operands after it.
    """
    target: Any = node.target
    graphs, operands = _call(module, node)
    if len(graphs) != 1:
        graphs = graphs[_BODIES.get(str(target.name()), slice(0))] if graphs else []
    result = _without_saved if is_called(node, "autograd_function_apply") else None
    inputs = list(_leaves(operands))
    return [Inside(body, inputs, result) for body in graphs if len(_inputs(body)) == len(inputs)]


def _without_saved(outputs: Any) -> Any:
    """Return the results of an autograd function's forward graph without the values saved for backward."""
    apart = isinstance(outputs, tuple | list) and len(outputs) == 2
    return outputs[0] if apart and isinstance(outputs[0], tuple | list) else outputs


def _call(module: GraphModule, node: Node) -> tuple[list[GraphModule], Sequence[Any]]:
    """Return the graphs among the arguments of a higher-order op, and the arguments after them."""
    if node.op != "call_function" or not isinstance(node.target, HigherOrderOperator):
        return [], ()
    graphs = [
        (place, reach(module, str(arg.target)))
        for place, arg in enumerate(node.args)
        if isinstance(arg, Node) and arg.op == "get_attr"
    ]
    found = [(place, graph) for place, graph in graphs if isinstance(graph, GraphModule)]
    return [graph for _, graph in found], node.args[found[-1][0] + 1 :] if found else ()


def _inputs(body: GraphModule) -> list[Node]:
    return [node for node in body.graph.nodes if node.op == "placeholder"]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield operands, also those in lists: nodes and numbers, not names and options."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif not isinstance(value, str | dict):
        yield value


def drop_fixed_inputs(module: GraphModule, is_fixed: Callable[[Node], bool]) -> None:
    """Remove fixed inputs from all graphs nested in a graph, except those of loops."""
    gone: dict[Node, None] = {}
    for node in module.graph.nodes:
        graphs, operands = _call(module, node)
        count = len(list(_leaves(operands)))
        if not graphs or is_called(node, *_LOOPS) or any(len(_inputs(graph)) != count for graph in graphs):
            continue
        columns = list(zip(*map(_inputs, graphs), strict=True))
        fixed = [all(is_fixed(each) and not each.users for each in column) for column in columns]
        places = iter(fixed)
        node.args = (*node.args[: len(node.args) - len(operands)], *_kept(operands, places))
        gone |= {each: None for column, drop in zip(columns, fixed, strict=True) if drop for each in column}
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    for child in module.children():
        if isinstance(child, GraphModule):
            drop_fixed_inputs(child, is_fixed)
            child.recompile()
    module.recompile()


def _kept(operands: Sequence[Any], fixed: Iterator[bool]) -> list[Any]:
    """Return the operands, some of them in lists, without those that are fixed."""
    found: list[Any] = []
    for operand in operands:
        if isinstance(operand, tuple | list):
            found.append(type(operand)(_kept(operand, fixed)))
        elif isinstance(operand, str | dict) or not next(fixed):
            found.append(operand)
    return found


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

    try:
        with applied_modes(repro.ambient), torch.no_grad():
            traced = make_fx(call, decomposition_table=dict(table), tracing_mode="fake")(*fakes)
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
    return not (isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags)


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
