"""A graph as the body of a Python function: a statement for each operation, short ones put into one another.

Operations keep their order: a value is written inside the expression that uses it only where Python then
evaluates everything in the order of the graph.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.graph_text.syntax import AUGMENTED
from torchrepro.script.document import autocast_text
from torchrepro.script.expressions import Text, Unwritable, Writer, nodes_in
from torchrepro.script.layout import INDENT, laid_out
from torchrepro.script.names import Names, base_name, names_of_inputs
from torchrepro.script.spelling import Speller
from torchrepro.torch_api.modes import enter_autocast, exit_autocast
from torchrepro.torch_api.ops import OpOverload, schema_of

_SHORT = 60
"""An expression longer than this gets a line of its own."""


@dataclass
class Body:
    """What a function consists of, apart from its name."""

    parameters: dict[Node, str] = field(default_factory=dict)
    """Inputs by name; sizes that the function finds on a tensor are not among them."""
    lines: list[str] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    """Attributes of the graph that it reads, by the name that it knows them by."""
    results: dict[str, str] = field(default_factory=dict)
    """Where a result is found: the judge's path (`out[0]`) to what is appended to the value returned."""


class BodyWriter:
    """Writes one graph."""

    def __init__(
        self,
        module: GraphModule,
        speller: Speller,
        *,
        sizes: dict[Node, tuple[Node, int]] | None = None,
        owner: str = "",
        nested: bool = False,
    ) -> None:
        self._module, self._speller = module, speller
        self._values = speller.traced.values
        self._sizes = sizes or {}
        self._owner = owner
        """What attributes of the graph are found on: `self` in a module."""
        self._is_nested = nested
        """Whether an operator calls the graph: it returns a tuple then, however short."""
        self._names = Names()
        self._texts: dict[Node, Text] = {}
        self._pending: list[Node] = []
        self._depth = 0
        self._uses = Counter(nodes_in([(node.args, node.kwargs) for node in module.graph.nodes]))
        self.body = Body()

    def write(self) -> Body:
        self.body.parameters = names_of_inputs(self._module, self._sizes, self._names)
        self._texts |= {node: Text(name) for node, name in self.body.parameters.items()}
        for node, (owner, dim) in self._sizes.items():
            self._texts[node] = Text(f"{self._texts[owner]}.shape[{dim}]")
        for node in self._module.graph.nodes:
            self._node(node)
        return self.body

    # One node.

    def _node(self, node: Node) -> None:
        """Write one node. Checked on torch 2.11 to 2.15 (`_enter_autocast`, `_exit_autocast`)."""
        if node.op == "placeholder":
            return
        if node.op == "get_attr":
            self._attribute(node)
        elif node.op == "output":
            self._output(node)
        elif node.op == "call_module":
            raise Unwritable(f"the module {node.target} inside the graph")
        elif node.target is enter_autocast:
            self._flush()
            device, dtype, enabled, *_ = (*node.args, None, None, None)
            self._line(f"with {autocast_text(device, dtype, enabled=enabled is not False)}:")
            self._depth += 1
            if node.next.target is exit_autocast:
                self._line("pass")
        elif node.target is exit_autocast:
            self._flush()
            self._depth -= 1
            if self._depth < 0:
                raise Unwritable("an autocast that ends before it begins")
        elif node.target is operator.setitem:
            self._set_item(node)
        elif node.target in AUGMENTED and self._is_tensor(node.args[0]):
            self._augmented(node)
        elif node.target is operator.getitem and node in self._texts:
            return  # a part of a result that was unpacked
        else:
            self._call(node)

    def _call(self, node: Node) -> None:
        spelling = self._speller.spelling(node)
        operands = [used for used in nodes_in((node.args, node.kwargs)) if used in self._pending]
        # Inlining keeps the graph's order only if the operands are the last pending ones, in their order.
        if operands != self._pending[len(self._pending) - len(operands) :]:
            self._flush()
        text = spelling(Writer(self._texts))
        if len(text.text) > _SHORT and operands:
            self._flush()
            text = spelling(Writer(self._texts))
        else:
            del self._pending[len(self._pending) - len(operands) :]
        parts = self._parts(node)
        if parts:
            self._unpack(node, parts, text)
        elif not node.users:
            self._flush()
            self._line(text.text)
        else:
            self._texts[node] = text
            self._pending.append(node)
            if self._uses[node] > 1 or len(text.text) > _SHORT or self._inside_an_index(node):
                self._flush(unless_returned=node)

    def _flush(self, unless_returned: Node | None = None) -> None:
        """Write each pending value as a line with a name of its own."""
        waiting, self._pending = self._pending, []
        for node in waiting:
            returned = [user.op for user in node.users] == ["output"] and self._uses[node] == 1
            if node is unless_returned and returned:
                self._pending.insert(0, node)
                continue
            name = self._names.of_result(node)
            self._line(f"{name} = {self._texts[node]}")
            self._texts[node] = Text(name)

    def _line(self, statement: str) -> None:
        self.body.lines += laid_out(statement, self._depth, margin=2 if self._owner else 1)

    # Statements other than calls.

    def _set_item(self, node: Node) -> None:
        self._flush()
        owner, index, value = node.args
        writer = Writer(self._texts)
        self._line(f"{writer.write(owner)}[{writer.index(index)}] = {writer.write(value)}")
        self._texts[node] = Text("None")

    def _augmented(self, node: Node) -> None:
        self._flush()
        writer = Writer(self._texts)
        owner = writer.write(node.args[0])
        assert callable(node.target)
        self._line(f"{owner} {AUGMENTED[node.target]} {writer.write(node.args[1])}")
        self._texts[node] = owner

    def _attribute(self, node: Node) -> None:
        value = operator.attrgetter(str(node.target))(self._module)
        if isinstance(value, GraphModule):
            self._nested(node, value)
            return
        if not isinstance(value, torch.Tensor):
            raise Unwritable(f"the attribute {node.target} of the graph, a {type(value).__name__}")
        known = {path: name for name, path in self.body.state.items()}
        name = known.get(str(node.target))
        if name is None:
            name = self._names.fresh(str(node.target).rpartition(".")[2].strip("_"))
            self.body.state[name] = str(node.target)
        self._texts[node] = Text(f"{self._owner}.{name}" if self._owner else name)

    def _nested(self, node: Node, graph: GraphModule) -> None:
        """Write a graph that is an argument of an operator, as a nested function."""
        self._flush()
        name = self._names.fresh(str(node.target).rpartition(".")[2])
        inner = BodyWriter(graph, self._speller, owner=self._owner, nested=True).write()
        if inner.state:
            raise Unwritable("tensors of its own in a nested graph")
        placeholders = [child for child in graph.graph.nodes if child.op == "placeholder"]
        taken = [
            inner.parameters.get(child) or f"unused{number}" for number, child in enumerate(placeholders)
        ]
        if self.body.lines and self.body.lines[-1]:
            self.body.lines.append("")
        self._line(f"def {name}({', '.join(taken)}):")
        self.body.lines += [INDENT * (self._depth + 1) + line for line in inner.lines]
        self.body.lines.append("")
        self._texts[node] = Text(name)

    def _output(self, node: Node) -> None:
        value: Any = node.args[0]
        plain = isinstance(value, tuple | list)
        items = list(enumerate(value)) if plain else [(0, value)]
        kept = [(index, item) for index, item in items if item is not None or not plain]
        all_nodes = all(isinstance(item, Node) for _, item in kept)
        operands = [item for _, item in kept if item in self._pending] if all_nodes else []
        if operands != self._pending:
            self._flush()
        line = self._returned([item for _, item in kept])
        if len(line) > _SHORT + 10 and len(kept) > 1:
            self._flush()
            line = self._returned([item for _, item in kept])
        self._pending.clear()
        if self._depth:
            raise Unwritable("an autocast that does not end")
        self._line(line)
        for place, (index, _) in enumerate(kept):
            suffix = "" if len(kept) == 1 else f"[{place}]"
            self.body.results[f"out[{index}]" if plain else "out"] = suffix

    def _returned(self, values: Sequence[Any]) -> str:
        writer = Writer(self._texts)
        if self._is_nested:
            return f"return {writer.write(tuple(values))}"
        return f"return {writer.arguments(values) or None}"

    # Questions.

    def _parts(self, node: Node) -> dict[int, Node]:
        """Return the users of a result with several parts, by index, where each part is used separately."""
        value = self._values.get(node)
        if not isinstance(value, tuple | list) or not node.users:
            return {}
        found: dict[int, Node] = {}
        for user in node.users:
            number = user.args[1] if user.target is operator.getitem else None
            if not isinstance(number, int) or number in found or not 0 <= number < len(value):
                return {}
            found[number] = user
        return found if len(found) > 1 else {}

    def _unpack(self, node: Node, parts: dict[int, Node], text: Text) -> None:
        self._flush()
        wanted = _names_of_parts(node)
        count = len(self._values[node])
        names = []
        for number in range(count):
            if number not in parts:
                names.append("_")
                continue
            said = wanted[number] if number < len(wanted) else ""
            names.append(self._names.fresh(said) if said else self._names.of_result(node))
            self._texts[parts[number]] = Text(names[-1])
        self._line(f"{', '.join(names)} = {text}")

    def _is_tensor(self, value: Any) -> bool:
        known = self._values.get(value) if isinstance(value, Node) else None
        return known is None or isinstance(known, torch.Tensor)

    def _inside_an_index(self, node: Node) -> bool:
        """Return whether the value is used as a size in a slice: an expression there is hard to read."""
        return any(
            user.target in (operator.getitem, operator.setitem) and user.args[0] is not node
            for user in node.users
        )


def _names_of_parts(node: Node) -> Sequence[str]:
    """Return the operator's names for its results, `values, indices`; empty where it has none."""
    target: Any = node.target
    if not isinstance(target, OpOverload):
        packet = getattr(torch.ops.aten, base_name(node), None)
        target = next((getattr(packet, name) for name in ("dim", "default") if hasattr(packet, name)), None)
    if not isinstance(target, OpOverload):
        return ()
    return [result.name or "" for result in schema_of(target).returns]
