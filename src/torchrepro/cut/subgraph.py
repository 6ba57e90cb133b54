"""Cut a piece out of a graph: what it reads from outside becomes an input that holds the recorded value.

A unit, which can be cut out, is an op together with the nodes that only unpack its results. The nodes that
enter and exit a region (autocast) are one unit: either without the other would be a different program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.batches import SideBySide
from torchrepro.cut.record_values import NotRecorded, Recording
from torchrepro.nouns.repro import Ambient, Autocast, Repro
from torchrepro.torch_api.modes import enter_autocast, exit_autocast, set_grad_enabled

CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes, by name, that stay or go together; the first is the op itself."""

    nodes: tuple[str, ...]
    is_state: bool = False
    """It computes nothing: it changes the state for what comes after."""

    @property
    def name(self) -> str:
        return self.nodes[0]


def units_of(graph: Graph, several: Collection[str]) -> list[Unit]:
    """Return the units of a graph, in graph order; every call belongs to exactly one.

    `several` names the nodes that return several values (`Recording.several`).
    """
    found: list[Unit] = []
    for node in graph.nodes:
        if node.op not in CALLS or takes_apart(node, several) or node.target is exit_autocast:
            continue
        entered = node.target is enter_autocast
        rest = [user for user in node.users if user.target is exit_autocast] if entered else None
        names = [each.name for each in (node, *(parts_of(node, several) if rest is None else rest))]
        found.append(Unit(tuple(names), is_state=entered or node.target is set_grad_enabled))
    return found


def parts_of(node: Node, several: Collection[str]) -> list[Node]:
    """Return the nodes that unpack the results of an op, nested ones included."""
    found = [user for user in node.users if takes_apart(user, several)]
    return [part for user in found for part in (user, *parts_of(user, several))]


def takes_apart(node: Node, several: Collection[str]) -> bool:
    """Return whether a node takes one of several values out of what an op returned."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, Node) and source.name in several


def ambient_at(graph: Graph, around: Ambient) -> dict[str, Ambient]:
    """Return the state in which each node runs: that around the call, and the regions of the graph."""
    found: dict[str, Ambient] = {}
    open_: list[tuple[Node, Ambient]] = []
    current = around
    for node in graph.nodes:
        if node.target is enter_autocast:
            open_.append((node, current))
            current = _inside(current, node)
        elif node.target is exit_autocast and open_ and node.args[0] is open_[-1][0]:
            _, current = open_.pop()
        elif node.target is set_grad_enabled and isinstance(node.args[0], bool):
            current = replace(current, grad_enabled=node.args[0])
        found[node.name] = current
    return found


def _inside(ambient: Ambient, enter: Node) -> Ambient:
    device, dtype, enabled, cache = (*enter.args, None, None, None, None)[:4]
    if not isinstance(device, str):
        return ambient
    chosen = dtype if isinstance(dtype, torch.dtype) else torch.get_autocast_dtype(device)
    cast = Autocast(device, str(chosen).removeprefix("torch."), enabled is not False, cache is not False)
    others = tuple(other for other in ambient.autocast if other.device != device)
    return replace(ambient, autocast=(*others, cast) if cast.enabled else others)


_TELLING = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")
"""The node metadata that is kept; the rest holds sizes, which change when a graph is cut."""


def without_symbols(repro: Repro) -> Repro:
    """Return the repro with every size fixed to its number; what is cut out of it has no symbols."""
    return replace(repro, symbols=()) if repro.symbols else repro


def piece(repro: Repro, recording: Recording, keep: Collection[str]) -> Repro | None:
    """Return the repro that computes the given nodes alone; None where that is no graph.

    Its outputs are the values that no kept node uses, and those that `repro` returns.
    """
    cut = _Cut(repro, recording)
    try:
        for node in repro.graph.graph.nodes:
            if node.name in keep and node.op in CALLS:
                cut.add(node)
    except NotRecorded:
        return None
    returned = set(repro.graph.graph.output_node().all_input_nodes)
    results = [
        node
        for node in cut.copies
        if node.op in CALLS and (node in returned or not any(user in cut.copies for user in node.users))
    ]
    return cut.finished(results)


def side_by_side(repro: Repro, recording: Recording, names: Sequence[str]) -> SideBySide | None:
    """Return a repro that computes each op on its own recorded operands: no op feeds another.

    One compilation then shows for each op separately whether its result is right. Ops are numbered as given.
    """
    by_name = {node.name: node for node in repro.graph.graph.nodes}
    states = ambient_at(repro.graph.graph, repro.ambient)
    cut = _Cut(replace(repro, ambient=states[names[0]]) if names else repro, recording)
    outputs: list[int] = []
    inputs: list[int] = []
    results: list[Node] = []
    for number, name in enumerate(names):
        node = by_name[name]
        try:
            before = len(cut.inputs)
            cut.add(node, apart=True)
        except NotRecorded:
            continue
        inputs += [number] * (len(cut.inputs) - before)
        parts = parts_of(node, recording.several)
        for part in parts:
            cut.add(part)
        taken = [part for part in parts if part.name not in recording.several] or [node]
        outputs += [number] * len(taken)
        results += taken
    whole = cut.finished(results)
    return None if whole is None else SideBySide(whole, len(names), tuple(inputs), tuple(outputs))


@dataclass(eq=False)
class _Cut:
    """A graph that grows node by node out of another one."""

    repro: Repro
    recording: Recording
    graph: Graph = field(default_factory=Graph)
    copies: dict[Node, Node] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    _placeholders: dict[object, Node] = field(default_factory=dict)
    _attributes: dict[Node, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = [node for node in self.repro.graph.graph.nodes if node.op == "placeholder"]
        self._given: Mapping[Node, Any] = dict(zip(wanted, self.repro.inputs, strict=False))
        self._last: Node | None = None

    def add(self, node: Node, *, apart: bool = False) -> None:
        """Add a copy of a node. `apart`: on recorded values, even if its operands are computed here."""

        def read(operand: Node) -> Any:
            if operand in self.copies and not apart:
                return self.copies[operand]
            if operand.op == "get_attr":
                return self._attribute(operand)
            return self._value(operand, node, apart)

        args = torch.fx.map_arg(node.args, read)
        kwargs = torch.fx.map_arg(node.kwargs, read)
        copy = self.graph.create_node(node.op, node.target, args, kwargs, name=node.name, type_expr=node.type)
        copy.meta = self._annotations(node)
        self.copies[node] = copy

    def finished(self, results: Sequence[Node]) -> Repro | None:
        """Return the repro with the given nodes as its results; None if none of them is a tensor."""
        outputs = tuple(self.copies[node] for node in results if self._is_result(node))
        if not outputs:
            return None
        self.graph.output(outputs)
        module = GraphModule(self.repro.graph, self.graph, class_name="Graph")
        return replace(self.repro, graph=module, inputs=tuple(self.inputs))

    def _is_result(self, node: Node) -> bool:
        """Return whether the node's value is a tensor or unknown."""
        if node.name in self.recording.several:
            return False
        known = self.recording.knows(node.name)
        return not known or isinstance(self.recording.result(node.name), torch.Tensor)

    def _annotations(self, node: Node) -> dict[str, Any]:
        if self.repro.symbols and node.op == "placeholder":
            return dict(node.meta)  # which of its sizes are symbols
        return {name: node.meta[name] for name in _TELLING if name in node.meta}

    def _attribute(self, node: Node) -> Node:
        if node not in self._attributes:
            with self._at_the_top():
                copy = self.graph.get_attr(str(node.target))
            copy.meta = self._annotations(node)
            self._attributes[node] = copy
        return self._attributes[node]

    def _value(self, operand: Node, user: Node, apart: bool) -> Any:
        given = operand.op == "placeholder"
        if given and (operand.name, user.name) not in self.recording.at_use:
            value = self._given[operand]
            if apart and isinstance(value, torch.Tensor):
                value = value.detach().requires_grad_(value.requires_grad)
        else:
            value = self.recording.value(operand.name, user.name)
        if not isinstance(value, torch.Tensor) and not (given and self.repro.symbols):
            return value  # a number or a size is written where it is used
        # An operand that is written to in between is a separate input for each node that reads it later.
        changed = (operand.name, user.name) in self.recording.at_use
        key = (operand, user) if apart or changed else operand
        if key not in self._placeholders:
            with self._at_the_top():
                placeholder = self.graph.placeholder(operand.name)
            placeholder.target = placeholder.name  # several inputs may hold one node's value
            self._last = placeholder
            placeholder.meta = self._annotations(operand)
            self._placeholders[key] = placeholder
            self.inputs.append(value)
        return self._placeholders[key]

    def _at_the_top(self) -> Any:
        """Set the insertion point for the body: inputs come first, in the order in which they are added."""
        if self._last is not None:
            return self.graph.inserting_after(self._last)
        return self.graph.inserting_before(next(iter(self.graph.nodes), None))
