"""Nested graphs: inline them, drop inputs that became fixed numbers, and bypass ops inside them.

Inlining puts the ops of a nested graph in the place of the higher-order op that calls it. Where the op runs
its graph once (`invoke_subgraph`, a checkpoint, the branch of a `cond`) the result is the same. A loop
becomes one iteration of it, with results of the same sizes. Where the higher-order op itself is the culprit,
ops inside its graph are bypassed: users of their result read an earlier value of the same size and dtype.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.surgery import (
    has_effects,
    put_in_place_of,
    reach,
    rebuilt,
    remove_dead_nodes,
    spliced,
    with_all_edited,
)
from torchrepro.graph_text.metadata import restore_metadata
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.fake_run import run_on_fakes
from torchrepro.torch_api.ops import HigherOrderOperator

_DEPTH = 8
_Build = Callable[[Graph, Any], Any]


def _as_it_is(graph: Graph, value: Any) -> Any:
    return value


@dataclass(frozen=True, eq=False)
class _Way:
    """How to do without a higher-order op: which graph to run, on what, and what the op's result is then."""

    body: str
    operands: Sequence[Any]
    given: _Build = _as_it_is
    """What the graph is run on, made of the operands."""
    result: _Build = _as_it_is
    """What the op would have returned, made of what the graph returns."""


def nested_calls(repro: Repro) -> list[str]:
    """The nodes of a graph that can be replaced by the ops of a nested graph."""
    known = _Known(repro)
    return [node.name for node in repro.graph.graph.nodes if _ways(repro.graph, node, known)]


def branches(repro: Repro) -> dict[str, str]:
    """Nodes that choose between two graphs, and the nodes that say which: True for the first."""
    found = {}
    for node in repro.graph.graph.nodes:
        if _is_called(node, "cond") and isinstance(node.args[0], Node):
            found[node.name] = node.args[0].name
    return found


def inlined(repro: Repro, names: Collection[str], second: Collection[str] = ()) -> Repro | None:
    """The repro without these higher-order ops, nor those in their graphs; None where none of them can go.

    Of a `cond` the first branch is taken, of those in `second` the other one.
    """
    found = repro
    for _ in range(_DEPTH):
        following = _inlined_once(found, names, second)
        if following is None:
            break
        found, names = following, _new_nodes(found, following)
    return None if found is repro else found


def _new_nodes(before: Repro, after: Repro) -> set[str]:
    """What came out of the nested graphs."""
    known = {node.name for node in before.graph.graph.nodes}
    return {node.name for node in after.graph.graph.nodes if node.name not in known}


def _inlined_once(repro: Repro, names: Collection[str], second: Collection[str]) -> Repro | None:
    module = GraphModule(repro.graph, copy.deepcopy(repro.graph.graph), class_name="Graph")
    known = _Known(repro)
    changed = False
    for node in list(module.graph.nodes):
        ways = _ways(module, node, known) if node.name in names else []
        if ways:
            _run_in_place(module, node, ways[-1] if node.name in second else ways[0])
            changed = True
    if not changed:
        return None
    remove_dead_nodes(module.graph)
    return rebuilt(repro, module.graph, module)


def _run_in_place(module: GraphModule, node: Node, way: _Way) -> None:
    with module.graph.inserting_before(node):
        given = way.given(module.graph, list(way.operands))
        outputs = spliced(module, reach(module, way.body), given)
        put_in_place_of(node, way.result(module.graph, outputs))
    for user in [user for user in node.users if not user.users]:
        module.graph.erase_node(user)
    if not node.users:
        module.graph.erase_node(node)


class _Known:
    """What is known of a graph: the sizes of its values, computed when they are first needed."""

    def __init__(self, repro: Repro) -> None:
        self._repro = repro
        self.is_aten = repro.place is not Place.AFTER_CAPTURE

    @functools.cached_property
    def values(self) -> Mapping[str, Any]:
        return run_on_fakes(self._repro).by_name

    def first_row(self, graph: Graph, value: Node) -> Node:
        if self.is_aten:
            return graph.call_function(torch.ops.aten.select.int, (value, 0, 0))
        return graph.call_function(operator.getitem, (value, 0))

    def repeated(self, graph: Graph, value: Any, like: Any) -> Any:
        """A row as often as `like` has rows."""
        if not isinstance(value, Node) or not isinstance(like, torch.Tensor):
            return value
        if self.is_aten:
            return graph.call_function(torch.ops.aten.expand.default, (value, list(like.shape)))
        return graph.call_method("expand", (value, *like.shape))


def _ways(module: GraphModule, node: Node, known: _Known) -> list[_Way]:
    """How a node can be done without; the branches of a `cond` in the order of its arguments."""
    if node.op != "call_function" or not isinstance(node.target, HigherOrderOperator):
        return []
    find = _SPECIAL.get(node.target.name(), _plain_call)
    return [way for way in find(node, known) if _fits(module, way)]


def _is_called(node: Node, name: str) -> bool:
    target: Any = node.target
    return isinstance(target, HigherOrderOperator) and str(target.name()) == name


def _fits(module: GraphModule, way: _Way) -> bool:
    body = reach(module, way.body)
    if not isinstance(body, GraphModule):
        return False
    inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
    return len(inputs) == len(way.operands)


def _plain_call(node: Node, known: _Known) -> Iterator[_Way]:
    """An op with one graph, which is called with the operands that come after it: most of them are."""
    places = [place for place, arg in enumerate(node.args) if isinstance(arg, Node) and arg.op == "get_attr"]
    if len(places) == 1:
        yield _Way(_path(node.args[places[0]]), list(_operands(node.args[places[0] + 1 :])))


def _operands(values: Sequence[Any]) -> Iterator[Any]:
    """Nodes and numbers, also those in lists; names and options are no operands."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _operands(value)
        elif not isinstance(value, str | dict):
            yield value


def _cond(node: Node, known: _Known) -> Iterator[_Way]:
    _, first, second, *operands = node.args
    for branch in (first, second):
        yield _Way(_path(branch), list(_operands(operands)))


def _while_loop(node: Node, known: _Known) -> Iterator[_Way]:
    _, body, *operands = node.args
    yield _Way(_path(body), list(_operands(operands)))


def _autograd_function(node: Node, known: _Known) -> Iterator[_Way]:
    """The forward graph returns its results, and apart from them what backward will need."""

    def result(graph: Graph, outputs: Any) -> Any:
        apart = isinstance(outputs, tuple | list) and len(outputs) == 2
        return outputs[0] if apart and isinstance(outputs[0], tuple | list) else outputs

    forward, _, *operands = node.args
    yield _Way(_path(forward), operands, result=result)


def _scan(node: Node, known: _Known) -> Iterator[_Way]:
    body, init, xs, *more = node.args
    yield _first_turn(node, body, list(_operands([init])), list(_operands([xs])), more, known)


def _map(node: Node, known: _Known) -> Iterator[_Way]:
    body, xs, *more = node.args
    yield _first_turn(node, body, [], list(_operands([xs])), more, known)


def _first_turn(
    node: Node, body: Any, carried: list[Any], xs: list[Any], more: Sequence[Any], known: _Known
) -> _Way:
    """One turn of a loop over rows, on the first ones; its result stands for those of all turns."""

    def given(graph: Graph, operands: Any) -> Any:
        rows = range(len(carried), len(carried) + len(xs))
        return [known.first_row(graph, x) if place in rows else x for place, x in enumerate(operands)]

    def result(graph: Graph, outputs: Any) -> Any:
        likes = known.values.get(node.name)
        if not isinstance(likes, tuple | list) or len(likes) != len(outputs):
            return outputs
        kept = len(carried)
        rows = zip(outputs[kept:], likes[kept:], strict=True)
        return (*outputs[:kept], *(known.repeated(graph, value, like) for value, like in rows))

    return _Way(_path(body), [*carried, *xs, *_operands(more)], given, result)


_SPECIAL: dict[str, Callable[[Node, _Known], Iterator[_Way]]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "autograd_function_apply": _autograd_function,
}


def _path(argument: Any) -> str:
    """Where an argument that is a graph stands in the module."""
    return str(argument.target) if isinstance(argument, Node) and argument.op == "get_attr" else ""


def drop_fixed_inputs(module: GraphModule, is_fixed: Callable[[Node], bool]) -> None:
    """Take the inputs that are fixed away from all graphs nested in a graph, in their place."""
    gone: dict[Node, None] = {}
    for node in module.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            gone.update(dict.fromkeys(_drop_operands(module, node, is_fixed)))
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    for child in module.children():
        if isinstance(child, GraphModule):
            drop_fixed_inputs(child, is_fixed)
            child.recompile()
    module.recompile()


def _drop_operands(module: GraphModule, node: Node, is_fixed: Callable[[Node], bool]) -> list[Node]:
    """Shorten the operands of a call; the inputs that its graphs have to lose as well."""
    places = [place for place, arg in enumerate(node.args) if _graph(module, arg) is not None]
    if not places:
        return []
    bodies = [_graph(module, node.args[place]) for place in places]
    inputs = [[n for n in body.graph.nodes if n.op == "placeholder"] for body in bodies if body is not None]
    tail = node.args[places[-1] + 1 :]
    count = sum(_count(operand) for operand in tail)
    if any(len(each) != count for each in inputs):
        return []  # no call of a graph with the operands that come after it
    # What is carried from turn to turn is returned as well, and stands before what is only read.
    last = _count(tail[-1]) if isinstance(tail[-1], tuple | list) else count
    fixed = {
        place
        for place in range(count - last, count)
        if all(is_fixed(each[place]) and not each[place].users for each in inputs)
    }
    node.args = (*node.args[: places[-1] + 1], *_without(tail, fixed))
    return [each[place] for each in inputs for place in fixed]


def _graph(module: GraphModule, arg: Any) -> GraphModule | None:
    found = reach(module, str(arg.target)) if isinstance(arg, Node) and arg.op == "get_attr" else None
    return found if isinstance(found, GraphModule) else None


def _count(operand: Any) -> int:
    """How many inputs of a graph an argument stands for; names stand for none."""
    if isinstance(operand, tuple | list):
        return sum(map(_count, operand))
    return 0 if isinstance(operand, str | dict) else 1


def _without(operands: Any, fixed: Collection[int]) -> list[Any]:
    left = []
    place = 0
    for operand in operands:
        size = _count(operand)
        if isinstance(operand, tuple | list):
            inner = _without(operand, {other - place for other in fixed})
            left.append(tuple(inner) if isinstance(operand, tuple) else inner)
        elif size == 0 or place not in fixed:
            left.append(operand)
        place += size
    return left


@dataclass(frozen=True, slots=True)
class Bypass:
    """An op in a nested graph, and the value that takes its place."""

    graph: str
    node: str
    instead: str


def bypasses(repro: Repro) -> list[Bypass]:
    """Every op in the nested graphs that can be passed by, on its own or together with all others."""
    if not any(isinstance(child, GraphModule) for child in repro.graph.children()):
        return []
    module = copy.deepcopy(repro.graph)
    try:
        restore_metadata(module, repro.inputs, repro.symbols)
    except Exception:
        # A graph that cannot be run on fakes does not tell its sizes.
        return []
    found = []
    for path, nested in module.named_modules():
        if path and isinstance(nested, GraphModule):
            needed = _deciding(module, path)
            found += [bypass for bypass in _in_graph(path, nested.graph) if bypass.node not in needed]
    return found


def without_ops(repro: Repro, passed: Collection[Bypass]) -> Repro:
    """The repro in which these ops are passed by."""

    def edit(path: str, graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        for bypass in passed:
            if bypass.graph == path:
                put_in_place_of(nodes[bypass.node], _last(nodes[bypass.instead], path, passed, nodes))

    module = with_all_edited(repro.graph, edit)
    return rebuilt(repro, module.graph, module)


def _last(node: Node, path: str, passed: Collection[Bypass], nodes: dict[str, Node]) -> Node:
    """What stands for a node, if it is passed by itself."""
    for bypass in passed:
        if bypass.graph == path and bypass.node == node.name:
            return _last(nodes[bypass.instead], path, passed, nodes)
    return node


def _in_graph(path: str, graph: Graph) -> list[Bypass]:
    found = []
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in graph.nodes:
        if node.op not in CALLS or has_effects(node) or not _is_floating(node):
            continue
        own = [operand for operand in node.all_input_nodes if operand.op != "get_attr"]
        same = [other for other in (*own, *inputs) if _kind(other) == _kind(node)]
        if same:
            found.append(Bypass(path, node.name, same[0].name))
    return found


def _is_floating(node: Node) -> bool:
    """Counters of loops are integers: without `i + 1` eager would not terminate."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _kind(node: Node) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, tuple(value.shape), tuple(value.stride()), value.device


def _deciding(module: GraphModule, path: str) -> set[str]:
    """The nodes of a loop's graph on which it depends whether the loop ends."""
    owner, _, name = path.rpartition(".")
    outer: Any = module.get_submodule(owner) if owner else module
    for node in outer.graph.nodes:
        if not isinstance(node.target, HigherOrderOperator) or node.target.name() != "while_loop":
            continue
        condition, body = (str(argument.target) for argument in node.args[:2])
        if name == condition:
            return {inner.name for inner in module.get_submodule(path).graph.nodes}  # type: ignore
        if name == body:
            return _read_by(outer.get_submodule(condition), outer.get_submodule(body))
    return set()


def _read_by(condition: GraphModule, body: GraphModule) -> set[str]:
    """What in the body leads to the values that the condition reads."""
    read = [bool(node.users) for node in condition.graph.nodes if node.op == "placeholder"]
    returned: Any = body.graph.output_node().args[0]
    open_ = [value for value, is_read in zip(returned, read, strict=False) if is_read]
    found: set[str] = set()
    while open_:
        node = open_.pop()
        if isinstance(node, Node) and node.name not in found:
            found.add(node.name)
            open_ += node.all_input_nodes
    return found
