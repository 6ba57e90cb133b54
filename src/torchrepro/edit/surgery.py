"""Change a copy of a repro's graph: names, metadata and values stay, the original is left alone.

Copy the nodes of one graph into another. Bypass ops: replace an op's result by one of its operands.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.units import CALLS
from torchrepro.graph_text.metadata import restore_metadata
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes
from torchrepro.torch_api.names import OPS
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, schema_of

_WRITING_OPERATORS = frozenset(
    name for name in dir(operator) if name.startswith("i") and name[1:] in dir(operator)
) | {"setitem", "delitem"}


def edited(repro: Repro, edit: Callable[[Graph], None]) -> Repro:
    """Return the repro with `edit` applied to a copy of its graph.

    Dead nodes are removed, and inputs that are no longer used.
    """
    graph = copy.deepcopy(repro.graph.graph)
    unused = {node.name for node in graph.nodes if node.op == "placeholder" and not node.users}
    edit(graph)
    remove_dead_nodes(graph)
    return rebuilt(repro, graph, drop=lambda node: not node.users and node.name not in unused)


def rebuilt(
    repro: Repro, graph: Graph, root: Any = None, drop: Callable[[Node], bool] = lambda node: False
) -> Repro:
    """Return the repro with this graph, without the inputs for which `drop` returns True.

    The inputs are those of the repro, by the placeholders' names. `root` holds the attributes of the graph.
    """
    names = [node.name for node in repro.graph.graph.nodes if node.op == "placeholder"]
    calls = [dict(zip(names, inputs, strict=False)) for inputs in (repro.inputs, *repro.earlier)]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        if drop(node):
            graph.erase_node(node)
    kept = [node.name for node in graph.nodes if node.op == "placeholder"]
    inputs, *earlier = (tuple(call[name] for name in kept if name in call) for call in calls)
    graph.lint()
    module = GraphModule(repro.graph if root is None else root, graph, class_name="Graph")
    return replace(repro, graph=module, inputs=inputs, earlier=tuple(earlier))


def put_in_place_of(node: Node, value: Any) -> None:
    """Replace a node by a value: another node, a number, or several in a tuple.

    Where the value is a tuple, a node that takes an item of the result is replaced by that item.
    """
    for user in list(node.users):
        place = user.args[1] if user.target is operator.getitem and user.args[0] is node else None
        if isinstance(value, tuple | list) and isinstance(place, int):
            put_in_place_of(user, value[place])
            continue

        def put(arg: Node) -> Any:
            return value if arg is node else arg

        user.args, user.kwargs = torch.fx.map_arg(user.args, put), torch.fx.map_arg(user.kwargs, put)


def remove_dead_nodes(graph: Graph) -> None:
    """Erase nodes that are not used and have no effects."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op != "placeholder" and not has_effects(node):
            graph.erase_node(node)


def has_effects(node: Node) -> bool:
    """Return whether a node does more than compute its result: it writes to a value or changes the state.

    Random ops do not count: the oracle judges whether it matters that others draw other numbers without them.
    Checked on torch 2.11 to 2.15 (`Node.is_impure`).
    """
    if node.op == "output":
        return True
    if node.op == "call_method":
        return writes_by_name(str(node.target)) or str(node.target) == "__setitem__"
    if node.op != "call_function":
        return False
    target: Any = node.target
    if isinstance(target, OpOverload):
        return bool(schema_of(target).is_mutable) or bool(node.is_impure(impure_random=False))
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    name = getattr(target, "__name__", "")
    if getattr(target, "__module__", "") == "_operator":
        return name in _WRITING_OPERATORS
    return writes_by_name(name) or _changes_state(target, name) or bool(node.is_impure(impure_random=False))


def writes_by_name(name: str) -> bool:
    """Return whether a name says that a function writes to its first argument: `add_`, not `__add__`."""
    return name.endswith("_") and not name.endswith("__")


def _changes_state(target: Any, name: str) -> bool:
    """Return whether a function opens or closes a region (autocast, vmap): a leading underscore, not an op.

    `_set_grad_enabled`, `_enter_autocast`, `_vmap_increment_nesting`, ...: the list changes between versions.
    """
    module = getattr(target, "__module__", "") or ""
    return name.startswith(("_", "lazy_load", "manual_seed")) and not module.startswith(OPS)


def with_all_edited(module: GraphModule, edit: Callable[[str, Graph], None], path: str = "") -> GraphModule:
    """Return a copy of a graph and of all graphs nested in it, each edited, the innermost first.

    `edit` takes the path of each, "" for the outermost.
    """
    made = GraphModule(module, copy.deepcopy(module.graph), class_name="Graph")
    for name, child in list(made.named_children()):
        if isinstance(child, GraphModule):
            setattr(made, name, with_all_edited(child, edit, f"{path}.{name}" if path else name))
    edit(path, made.graph)
    remove_dead_nodes(made.graph)
    made.recompile()
    return made


class Inside(NamedTuple):
    """The graph of ops that an op consists of, its operands, and which of its results the op returns."""

    body: GraphModule
    operands: Sequence[Any]
    result: Callable[[Any], Any] | None = None


def expanded(repro: Repro, inside: Callable[[GraphModule, Node], Inside | None]) -> Repro | None:
    """Return the repro with nodes replaced by the graphs that `inside` returns; None if it returns none."""
    module = GraphModule(repro.graph, copy.deepcopy(repro.graph.graph), class_name="Graph")
    changed = False
    for node in list(module.graph.nodes):
        found = inside(module, node)
        if found is None:
            continue
        with module.graph.inserting_before(node):
            results = _spliced(module, found.body, found.operands)
        put_in_place_of(node, results if found.result is None else found.result(results))
        for gone in [*(user for user in node.users if not user.users), node]:
            if not gone.users:
                module.graph.erase_node(gone)
        changed = True
    if not changed:
        return None
    remove_dead_nodes(module.graph)
    return rebuilt(repro, module.graph, module)


def _spliced(module: GraphModule, body: GraphModule, operands: Sequence[Any]) -> Any:
    """Copy the nodes of a body to the insertion point; return what its output node returns.

    `operands` replace its inputs. Names stay where they are free.
    """
    copies: dict[Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
    result = module.graph.graph_copy(body.graph, copies)
    for node in body.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            copies[node].target = _adopt(module, str(node.target), reach(body, str(node.target)))
    return result


def _adopt(module: GraphModule, path: str, value: Any) -> str:
    """Set a value of a nested graph on the outer graph, under a free name; return the name."""
    wanted = name = path.replace(".", "_")
    count = 0
    while hasattr(module, name) and getattr(module, name) is not value:
        count += 1
        name = f"{wanted}_{count}"
    setattr(module, name, value)
    return name


def reach(module: Any, path: str) -> Any:
    """Return the attribute at a dotted path; None if there is none."""
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


Spot = tuple[str, str]
"""The path of a nested graph, "" for the outermost one, and the name of a node in it."""


def operands_instead(repro: Repro, *, same_size: bool = True) -> dict[Spot, list[str]]:
    """Return, per op whose result another op reads, its operands of the same dtype and size, ops first."""
    kinds = {
        name: (value.dtype, value.device, value.shape if same_size else None)
        for name, value in run_on_fakes(repro).by_name.items()
        if isinstance(value, torch.Tensor)
    }
    calls = {node.name for node in repro.graph.graph.nodes if node.op in CALLS}
    found = {}
    for node in repro.graph.graph.nodes:
        leads_on = any(user.op in CALLS for user in node.users)
        if leads_on and (alike := _alike(node, node.all_input_nodes, kinds)):
            found["", node.name] = sorted(alike, key=lambda name: name not in calls)
    return found


def operands_instead_in_bodies(repro: Repro) -> dict[Spot, list[str]]:
    """Return, per op in the nested graphs, the operands and inputs of its graph that could replace it.

    The graphs of a `while_loop` are left alone: without `i + 1` eager would not terminate.
    """
    if not any(isinstance(child, GraphModule) for child in repro.graph.children()):
        return {}
    module = copy.deepcopy(repro.graph)
    try:
        restore_metadata(module, repro.inputs, repro.symbols)
    except Exception:
        # The sizes in a graph that cannot be run on fakes are unknown.
        return {}
    graphs = {path: each.graph for path, each in module.named_modules() if isinstance(each, GraphModule)}
    loops = {
        f"{path}.{argument.target}".removeprefix(".")
        for path, graph in graphs.items()
        for node in graph.nodes
        if is_called(node, "while_loop")
        for argument in node.args[:2]
    }
    found = {}
    for path, graph in graphs.items():
        if path and path not in loops:
            kinds = {node.name: kind for node in graph.nodes if (kind := _floating_kind(node)) is not None}
            inputs = graph.find_nodes(op="placeholder")
            for node in graph.nodes:
                if node.name in kinds and (alike := _alike(node, (*node.all_input_nodes, *inputs), kinds)):
                    found[path, node.name] = alike
    return found


def bypassed(repro: Repro, instead: Mapping[Spot, str], kept: Collection[Spot]) -> Repro | None:
    """Return the repro with the ops that are not kept replaced by their operands; None if no op is left."""

    def edit(path: str, graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        gone = {spot[1]: other for spot, other in instead.items() if spot[0] == path and spot not in kept}
        for name in gone:
            last = name
            while last in gone:  # its replacement may be bypassed as well
                last = gone[last]
            put_in_place_of(nodes[name], nodes[last])

    if any(path for path, _ in instead):
        module = with_all_edited(repro.graph, edit)
        return rebuilt(repro, module.graph, module)
    found = edited(repro, lambda graph: edit("", graph))
    return found if found.ops else None


def _alike(node: Node, others: Iterable[Node], kinds: Mapping[str, Any]) -> list[str]:
    """Return the names of other values that could replace an op's result."""
    if node.op not in CALLS or has_effects(node) or node.name not in kinds:
        return []
    return [other.name for other in others if kinds.get(other.name) == kinds[node.name]]


def _floating_kind(node: Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return None
    return value.dtype, value.device, tuple(value.shape), tuple(value.stride())


def is_called(node: Node, *names: str) -> bool:
    """Return whether a node calls a higher-order op of one of these names."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target.name()) in names
