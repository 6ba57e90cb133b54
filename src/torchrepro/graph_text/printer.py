"""A GraphModule as text: one class per graph, one line per node, data and code kept apart."""

from __future__ import annotations

import itertools
import keyword
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import Node

from torchrepro.graph_text import resolver
from torchrepro.graph_text.allowed import ATTRIBUTES
from torchrepro.graph_text.annotations import note_of_node, note_of_value, write_note
from torchrepro.graph_text.leaf_modules import leaf_module_arguments
from torchrepro.graph_text.literals import RESERVED, LiteralWriter, is_placeholder_target, quote
from torchrepro.graph_text.source_lines import UNKNOWN, comment_of
from torchrepro.graph_text.syntax import HEADER, INFIX, PREFIX, unused_name
from torchrepro.graph_text.triton_kernels import calls_kernel, kernel_name, with_places
from torchrepro.nouns.errors import CannotSerialise, in_a_line
from torchrepro.nouns.repro import UserSetting, count_ops
from torchrepro.torch_api.fake import takes_nested_values
from torchrepro.torch_api.modules import own_state
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

_INDENT = "    "
_WIDTH = 110


@dataclass(frozen=True)
class GraphText:
    """A graph as text, and next to it what is data and not text."""

    text: str
    constants: Mapping[str, Any]
    """Tensors, parameters, buffers (key: their path) and generators; the same object has one key."""
    needs_trust: tuple[str, ...] = ()
    """Callables that a stranger reads only on `--trust`: the user's functions, operators of own libraries."""
    custom_ops: tuple[OpOverload, ...] = ()
    """Operators that do not come with torch."""
    kernels: Mapping[str, Any] = field(default_factory=dict)
    """The user's Triton kernels by the names that the text has for them."""
    source: str = ""
    """The user's code that the text refers to as `source.NAME`; empty where it needs none."""
    settings: tuple[UserSetting, ...] = ()
    """Settings of the compilers that are code of the user."""
    code: Mapping[int, str] = field(default_factory=dict)
    """Paths of the classes and objects in the graph's values, by identity: `source:NAME`, `module:Class`."""
    notes: tuple[str, ...] = ()
    ops: int = 0
    """How many nodes compute something, nested graphs included."""
    missing: tuple[str, ...] = ()
    """What could not be written: the text has `missing(...)` in its place, which no reader accepts."""


def overloads_of(targets: Iterable[OpOverload | OpOverloadPacket]) -> tuple[OpOverload, ...]:
    """Return the operators behind what a graph calls, each once."""
    found: dict[str, OpOverload] = {}
    for target in targets:
        if isinstance(target, OpOverloadPacket):
            found |= {op.name(): op for op in (getattr(target, name) for name in target.overloads())}
        else:
            found[target.name()] = target
    return tuple(found.values())


def write_graph(
    module: GraphModule,
    source: Callable[[Any], str | None] = lambda value: None,
    *,
    incomplete: bool = False,
) -> GraphText:
    """Return the text of a graph; raise CannotSerialise with the name of what cannot be kept as data.

    `source` gives the names of what stands in a source text (see `user_code/graph_source.py`). With
    `incomplete`, write as much as possible instead of raising: for people, not for a reader.
    """
    constants = _Constants()
    holes = _Holes(allowed=incomplete)
    printer = _GraphPrinter(module, constants, "", "Graph", source, holes)
    try:
        lines = list(printer.lines())
    except Exception as exc:
        if not incomplete:
            raise
        holes.add("the graph", exc)
        lines = [f"# {line}" for line in str(module.graph).splitlines()]
    text = "\n".join([HEADER, *(line.rstrip() for line in lines)]) + "\n"
    trust = {name: used for used in printer.literals.used if (name := resolver.needs_trust(used))}
    custom = overloads_of(used for used in trust.values() if isinstance(used, OpOverload | OpOverloadPacket))
    return GraphText(
        text,
        constants.by_key,
        tuple(trust),
        custom,
        constants.kernels,
        ops=count_ops(module),
        missing=tuple(holes.found),
    )


@dataclass
class _Holes:
    """What could not be written, where an incomplete text is allowed."""

    allowed: bool
    found: list[str] = field(default_factory=list)

    def add(self, what: str, reason: Exception) -> str:
        """Remember what is missing, and return the text that stands for it."""
        self.found.append(f"{what}: {in_a_line(reason)}")
        return f"missing({quote(what)}, {quote(in_a_line(reason))})"


class _Constants:
    """Tensors, generators and Triton kernels of a graph by key: each object once."""

    def __init__(self) -> None:
        self.by_key: dict[str, Any] = {}
        self.kernels: dict[str, Any] = {}
        self._keys: dict[int, str] = {}

    def keep_kernel(self, kernel: Any) -> str:
        """Keep a Triton kernel; return the name under which it is kept."""
        return self._unused(kernel, kernel_name(kernel), self.kernels, first=2)

    def keep(self, value: Any, wanted: str) -> str:
        return self._unused(value, wanted, self.by_key, first=1)

    def _unused(self, value: Any, wanted: str, kept: dict[str, Any], first: int) -> str:
        if id(value) not in self._keys:
            key = self._keys[id(value)] = unused_name(wanted, kept, first=first)
            kept[key] = value
        return self._keys[id(value)]


class _GraphPrinter:
    """Prints one graph and, nested in it, the graphs that it calls."""

    def __init__(
        self,
        module: GraphModule,
        constants: _Constants,
        prefix: str,
        name: str,
        source: Callable[[Any], str | None],
        holes: _Holes,
    ) -> None:
        self._module = module
        self._constants = constants
        self._prefix = prefix
        self._name = name
        self._holes = holes
        self._variables: dict[Node, str] = {}
        self._written: dict[str, Any] = {}
        self.literals = LiteralWriter(
            self._variables,
            lambda value: constants.keep(value, f"{prefix}literal"),
            source=source,
            keep_kernel=constants.keep_kernel,
        )

    def lines(self) -> Iterator[str]:
        """Yield the class of this graph, not indented."""
        if takes_nested_values(self._module.graph):
            raise CannotSerialise(
                "the graph takes or returns nested values",
                next_step="save the exported program itself: torchrepro.save_repro(program)",
            )
        self._name_variables()
        yield f"class {self._name}:"
        for line in (*self._state(), *self._forward()):
            yield _INDENT + line

    def _name_variables(self) -> None:
        taken: set[str] = set()
        for node in self._module.graph.nodes:
            name = node.name
            if not resolver.IDENTIFIER.match(name) or keyword.iskeyword(name):
                raise CannotSerialise(
                    f"the node {name!r} has a name that is no identifier", next_step="rename it"
                )
            while name in taken or name in RESERVED:
                name += "_"
            taken.add(name)
            self._variables[node] = name

    # State: what get_attr and call_module reach

    def _state(self) -> Iterator[str]:
        # Modules first: their own tensors come with them.
        for op in ("call_module", "get_attr"):
            for path in dict.fromkeys(node.target for node in self._module.graph.nodes if node.op == op):
                if path not in self._written:
                    yield from self._attribute_or_hole(path)

    def _attribute_or_hole(self, path: str) -> list[str]:
        try:
            return list(self._attribute(path))
        except Exception as exc:
            if not self._holes.allowed:
                raise
            return [f"{_place(path)} = {self._holes.add(f'the attribute {path}', exc)}"]

    def _attribute(self, path: str) -> Iterator[str]:
        value, owner = _reach(self._module, path)
        same = next((other for other, known in self._written.items() if known is value), None)
        self._written[path] = value
        if isinstance(value, torch.Tensor):
            yield self._tensor(path, value, owner)
        elif (in_source := self.literals.source(value)) is not None:
            yield f"{_place(path)} = source.{in_source}"
        elif isinstance(value, GraphModule):
            yield from self._nested(path, value, same)
        elif isinstance(value, torch.nn.Module):
            yield from self._leaf(path, value, same)
        else:
            if isinstance(value, torch.Generator):
                self._constants.keep(value, self._prefix + path)
            yield f"{_place(path)} = {self.literals.write(value)}"

    def _nested(self, path: str, value: GraphModule, same: str | None) -> Iterator[str]:
        simple = "." not in path and _is_dotted(path)
        name = path if simple else re.sub(r"\W", "_", f"graph_{path}")
        options = [] if simple else [f"at={quote(path)}"]
        options += [] if same is None else [f"same_as={quote(same)}"]
        header = f"{name}({', '.join(options)})" if options else name
        if same is not None:
            yield f"class {header}:"
            yield f"{_INDENT}pass"
            return
        prefix = f"{self._prefix}{path}."
        nested = _GraphPrinter(value, self._constants, prefix, header, self.literals.source, self._holes)
        yield from nested.lines()
        self.literals.used.extend(nested.literals.used)
        yield ""

    def _leaf(self, path: str, value: torch.nn.Module, same: str | None) -> Iterator[str]:
        if same is not None:
            yield f"{_place(path)} = {_place(same)}"
            return
        class_path, arguments = leaf_module_arguments(path, value)
        written = ", ".join(f"{name}={self.literals.write(argument)}" for name, argument in arguments.items())
        yield f"{_place(path)} = {class_path}({written})" + ("" if value.training else ".eval()")
        for name, tensor in value.state_dict(keep_vars=True).items():
            self._written[f"{path}.{name}"] = tensor
            yield self._tensor(f"{path}.{name}", tensor, _reach(value, name)[1])

    def _tensor(self, path: str, value: torch.Tensor, owner: torch.nn.Module) -> str:
        key = self._constants.keep(value, self._prefix + path)
        name = path.rpartition(".")[2]
        kind = "const"
        if isinstance(value, torch.nn.Parameter):
            kind = "parameter"
        elif name in own_state(owner).buffers:
            kind = "temporary_buffer" if name in own_state(owner).temporary else "buffer"
        return f"{_place(path)}{_annotation(note_of_value(value))} = {kind}({quote(key)})"

    # Nodes

    def _forward(self) -> Iterator[str]:
        nodes = list(self._module.graph.nodes)

        def is_parameter(node: Node) -> bool:
            return node.op == "placeholder" and self._variables[node] == node.name and not node.kwargs

        inputs = list(itertools.takewhile(is_parameter, nodes))
        yield from self._signature(inputs)
        comment = UNKNOWN
        for node in nodes[len(inputs) :]:
            own = comment_of(node)
            if own != comment and node.op != "output":
                yield f"{_INDENT}# {own}"
                comment = own
            yield _INDENT + self._statement(node)
        if len(inputs) == len(nodes):
            yield f"{_INDENT}pass"

    def _signature(self, nodes: list[Node]) -> Iterator[str]:
        parameters = ["self"]
        defaults = False  # after a parameter with a default, Python wants one for each
        for node in nodes:
            defaults |= node.target != node.name or bool(node.args)
            default = f" = {self._expression_or_hole(node)}" if defaults else ""
            parameters.append(self._variables[node] + self._note(node) + default)
        line = f"def forward({', '.join(parameters)}):"
        if len(line) <= _WIDTH and len(nodes) <= 3:
            yield line
            return
        yield "def forward("
        for text in parameters:
            yield f"{_INDENT}{text},"
        yield "):"

    def _placeholder(self, node: Node) -> str:
        target = node.target
        if not isinstance(target, str) or not is_placeholder_target(target):
            raise CannotSerialise(f"the input {target!r} is no parameter name", next_step="rename it")
        arguments = [] if target == node.name else [quote(target)]
        arguments += [f"default={self.literals.write(value)}" for value in node.args]
        return f"arg({', '.join(arguments)})"

    def _statement(self, node: Node) -> str:
        expression = self._expression_or_hole(node)
        variable = "output" if node.op == "output" else self._variables[node]
        if variable != node.name:
            expression = f"named({quote(node.name)}, {expression})"
        if node.op == "output":
            return f"return {expression}"
        return f"{variable}{self._note(node)} = {expression}"

    def _note(self, node: Node) -> str:
        """Return the annotation of a node; in an incomplete text, none where its value has no description."""
        try:
            return _annotation(note_of_node(node))
        except Exception:
            if not self._holes.allowed:
                raise
            return ""

    def _expression_or_hole(self, node: Node) -> str:
        try:
            return self._expression(node)
        except Exception as exc:
            if not self._holes.allowed:
                raise
            called = getattr(node.target, "__name__", node.target)
            return self._holes.add(f"the node {node.name} ({node.op} {called})", exc)

    def _expression(self, node: Node) -> str:
        write = self.literals.write
        args, kwargs, target = node.args, node.kwargs, node.target
        if node.op == "placeholder" and len(args) < 2 and not kwargs:
            return self._placeholder(node)
        if node.op == "output" and len(args) == 1 and not kwargs:
            return write(args[0])
        if node.op == "get_attr" and not args and not kwargs:
            return _place(str(target))
        if calls_kernel(node):
            kwargs = with_places(node)
        if node.op == "call_function" and callable(target):
            return (
                self._operator(node) or f"{self.literals.callable(target)}({self._arguments(args, kwargs)})"
            )
        if node.op == "call_method" and isinstance(target, str):
            if args and isinstance(args[0], Node):
                return f"{write(args[0])}.{target}({self._arguments(args[1:], kwargs)})"
            return f"call_method({self._arguments((target, *args), kwargs)})"
        if node.op == "call_module":
            if _is_dotted(str(target)):
                return f"{_place(str(target))}({self._arguments(args, kwargs)})"
            return f"call_module({self._arguments((target, *args), kwargs)})"
        raise CannotSerialise(
            f"the node {node.format_node()} has an unknown form", next_step="rebuild the graph"
        )

    def _operator(self, node: Node) -> str | None:
        """Return Python's syntax for a function of `operator`; None without one or without node operands."""
        write, args, target = self.literals.write, node.args, node.target
        if node.kwargs or not args or not isinstance(args[0], Node):
            flipped = not node.kwargs and len(args) == 2 and isinstance(args[1], Node)
            if not (flipped and target in INFIX and isinstance(args[0], int | float | Node)):
                return None
        if len(args) == 2:
            if target is operator.getitem:
                return f"{write(args[0])}[{self._index(args[1])}]"
            if target in INFIX:
                return f"{self._operand(args[0])} {INFIX[target]} {self._operand(args[1])}"
            if target is getattr and isinstance(args[1], str) and args[1] in ATTRIBUTES:
                return f"{write(args[0])}.{args[1]}"
        if len(args) == 1 and target in PREFIX:
            return f"{PREFIX[target]}{write(args[0])}"
        return None

    def _operand(self, value: Any) -> str:
        text = self.literals.write(value)
        return f"({text})" if text.startswith("-") else text

    def _index(self, value: Any) -> str:
        if isinstance(value, slice):
            bounds = ["" if part is None else self.literals.write(part) for part in (value.start, value.stop)]
            return ":".join(bounds) + ("" if value.step is None else f":{self.literals.write(value.step)}")
        write = self.literals.write
        if type(value) is tuple and any(isinstance(item, slice) for item in value):
            parts = [self._index(item) if isinstance(item, slice) else write(item) for item in value]
            return ", ".join(parts) + ("," if len(parts) == 1 else "")
        return write(value)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        for name in kwargs:
            if not resolver.IDENTIFIER.match(name) or keyword.iskeyword(name):
                raise CannotSerialise(f"the argument name {name!r} is no identifier", next_step="rename it")
        written = [self.literals.write(arg) for arg in args]
        return ", ".join(written + [f"{name}={self.literals.write(value)}" for name, value in kwargs.items()])


def _annotation(note: Any) -> str:
    return "" if note is None else f": {write_note(note)}"


def _is_dotted(path: str) -> bool:
    return all(resolver.IDENTIFIER.match(part) and not keyword.iskeyword(part) for part in path.split("."))


def _place(path: str) -> str:
    """Return the text of an attribute of the module, as a value and as a target."""
    return f"self.{path}" if _is_dotted(path) else f"self[{quote(path)}]"


def _reach(module: torch.nn.Module, path: str) -> tuple[Any, torch.nn.Module]:
    """Return the attribute at a dotted path and the module that holds it."""
    value: Any = module
    owner = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise CannotSerialise(
                f"the graph reads {path}, which its module does not have", next_step="capture it again"
            )
        owner, value = value, getattr(value, part)
    return value, owner
