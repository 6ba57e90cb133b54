"""Cut a piece out of a graph: what it reads from outside becomes an input that holds the recorded value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.batches import SideBySide
from torchrepro.cut.record_values import NotRecorded, Recording
from torchrepro.cut.units import CALLS, ambient_at, parts_of
from torchrepro.nouns.repro import Repro

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
