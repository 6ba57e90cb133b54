"""Arguments of a graph's nodes: the numbers in them, their parameters, and plainer choices for each."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.cost import cost_of
from torchrepro.edit.surgery import edited, has_effects
from torchrepro.graph_text.annotations import NOTE_KEY, TensorNote, note_of_node
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import OpOverload

Path = tuple[int | str, ...]
_SLICE = ("start", "stop", "step")
_EXAMPLES = ("val", "example_value", "tensor_meta", "unbacked_bindings", NOTE_KEY)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value in the arguments of a node: `("args", 1, 0)` is the first of its second argument."""

    node: str
    path: Path


def literals_of(node: Node, kind: type) -> Iterator[tuple[Literal, Any]]:
    """The values of one type in a node's arguments, however deep."""
    if node.op not in CALLS:
        return
    for where, held in (("args", node.args), ("kwargs", node.kwargs)):
        for path, value in _leaves(held, (where,)):
            if type(value) is kind:
                yield Literal(node.name, path), value


def with_literals(repro: Repro, values: Mapping[Literal, Any]) -> Repro:
    """The repro with other values in its arguments.

    What nodes were noted to compute is forgotten: it was about other sizes and dtypes. Names of sizes that
    are symbols stay with the inputs.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    by_node: dict[str, dict[Path, Any]] = {}
    for literal, value in values.items():
        by_node.setdefault(literal.node, {})[literal.path] = value
    shapes = dict(zip(_inputs(repro.graph), repro.inputs, strict=False))
    for node in repro.graph.graph.nodes:
        changed = by_node.get(node.name, {})
        args = replaced(node.args, ("args",), changed) if changed else node.args
        kwargs = replaced(node.kwargs, ("kwargs",), changed) if changed else node.kwargs
        made = graph.create_node(
            node.op,
            node.target,
            map_arg(args, copies.__getitem__),
            map_arg(kwargs, copies.__getitem__),
            name=node.name,
            type_expr=node.type,
        )
        made.meta = {key: value for key, value in node.meta.items() if key not in _EXAMPLES}
        note = _note_still_true(node, shapes.get(node.name))
        if note is not None:
            made.meta[NOTE_KEY] = note
        copies[node] = made
    return replace(repro, graph=GraphModule(repro.graph, graph, class_name="Graph"))


def _inputs(module: GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


def _note_still_true(node: Node, value: Any) -> Any:
    """What is still true of a node: sizes that are symbols, and those that are known only at run time."""
    note = note_of_node(node)
    if node.op == "placeholder":
        if not isinstance(note, TensorNote):
            return note
        sizes = tuple(
            size if isinstance(size, str) else actual
            for size, actual in zip(note.shape, getattr(value, "shape", note.shape), strict=False)
        )
        symbolic = any(isinstance(size, str) for size in sizes)
        return replace(note, shape=sizes, stride=None) if symbolic else None
    return note if "unbacked_bindings" in node.meta or _is_unbacked(note) else None


def _is_unbacked(note: Any) -> bool:
    if isinstance(note, tuple):
        return any(map(_is_unbacked, note))
    sizes = note.shape if isinstance(note, TensorNote) else (getattr(note, "expression", None),)
    return any(isinstance(size, str) and size.lstrip("(").startswith("u") for size in sizes)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, slice):
        for name in _SLICE:
            yield from _leaves(getattr(value, name), (*path, name))
    elif not isinstance(value, Node):
        yield path, value


def replaced(value: Any, path: Path, changed: Mapping[Path, Any]) -> Any:
    """The same structure, in plain containers, with some leaves changed."""
    if path in changed:
        return changed[path]
    if isinstance(value, tuple | list):
        items = [replaced(item, (*path, index), changed) for index, item in enumerate(value)]
        if hasattr(value, "_make"):
            return value._make(items)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: replaced(item, (*path, key), changed) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(replaced(getattr(value, name), (*path, name), changed) for name in _SLICE))
    return value


REQUIRED: Any = inspect.Parameter.empty
"""The default of a parameter that has none."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an op or a function."""

    name: str
    default: Any = REQUIRED
    by_name_only: bool = False
    optional: bool = False
    """It may be None."""

    @property
    def has_default(self) -> bool:
        return self.default is not REQUIRED


def parameters_of(node: Node) -> tuple[Parameter, ...]:
    """The parameters of the first signature that takes a node's arguments; empty where none is known."""
    for parameters in _signatures(node.op, node.target):
        if _takes(parameters, len(node.args), set(node.kwargs)):
            return parameters
    return ()


def can_be_left_out(node: Node, place: int | str) -> bool:
    """Whether an argument has a default, or another signature does without it and those after it.

    `x.sum(dim=1)` and `x.sum()` are two signatures.
    """
    parameter = parameter_at(parameters_of(node), place)
    if parameter is not None and parameter.has_default:
        return True
    count = place if isinstance(place, int) else len(node.args)
    names = set(node.kwargs) - {place}
    signatures = _signatures(node.op, node.target)
    return any(_takes(each, count, names) or _takes(each, count, set()) for each in signatures)


def parameter_at(parameters: tuple[Parameter, ...], place: int | str) -> Parameter | None:
    """The parameter of a positional argument or of a keyword."""
    if isinstance(place, str):
        return next((parameter for parameter in parameters if parameter.name == place), None)
    positional = [parameter for parameter in parameters if not parameter.by_name_only]
    return positional[place] if place < len(positional) else None


def _takes(parameters: tuple[Parameter, ...], count: int, names: set[str]) -> bool:
    positional = [parameter.name for parameter in parameters if not parameter.by_name_only]
    given = {*positional[:count], *names}
    return (
        count <= len(positional)
        and names <= {parameter.name for parameter in parameters} - set(positional[:count])
        and all(parameter.has_default or parameter.name in given for parameter in parameters)
    )


@functools.cache
def _signatures(op: str, target: Any) -> tuple[tuple[Parameter, ...], ...]:
    return tuple(_found_signatures(op, target))


def _found_signatures(op: str, target: Any) -> Iterator[tuple[Parameter, ...]]:
    if isinstance(target, OpOverload):
        yield _of_schema(target)
        return
    if op == "call_function" and getattr(target, "__module__", "") != "_operator":
        with contextlib.suppress(TypeError, ValueError):  # a builtin: its overloads know
            yield tuple(_of_python(inspect.signature(target)))
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    yield from _of_overloads(name)


def _of_overloads(name: str) -> Iterator[tuple[Parameter, ...]]:
    """The overloads of the op that a function or method of torch has its name from.

    Checked on torch 2.11 to 2.15 (`OpOverloadPacket.overloads`).
    """
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    for overload in packet.overloads() if packet is not None else ():
        if overload != "out" and not overload.endswith("_out"):
            yield _of_schema(getattr(packet, overload))


def _of_schema(op: OpOverload) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            argument.name,
            argument.default_value if argument.has_default_value() else REQUIRED,
            argument.kwarg_only,
            argument.type.kind() == "OptionalType",
        )
        for argument in op._schema.arguments
    )


def _of_python(signature: inspect.Signature) -> Iterator[Parameter]:
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError("takes any arguments")
        yield Parameter(
            parameter.name,
            parameter.default,
            parameter.kind is parameter.KEYWORD_ONLY,
            parameter.default is None,
        )


DROPPED: Any = object()
"""In the place of an argument: leave it to its default."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of a node: its position or its keyword."""

    node: str
    place: int | str
    choices: tuple[Any, ...] = field(default=(), compare=False)
    """What could stand there, plainest first; at most a few."""


def slots_of(repro: Repro) -> list[Slot]:
    """Every argument for which there is something plainer."""
    found = []
    for node in repro.graph.graph.nodes:
        if node.op not in CALLS or has_effects(node) or _is_getitem(node):
            continue
        parameters = parameters_of(node)
        places: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        for place, value in places:
            # The object that a method belongs to is no argument.
            if place == 0 and node.op == "call_method":
                continue
            choices = list(_choices(value, parameter_at(parameters, place)))
            if can_be_left_out(node, place):
                choices.insert(0, DROPPED)
            if choices:
                found.append(Slot(node.name, place, tuple(choices)))
    return found


def with_arguments(repro: Repro, values: Mapping[Slot, Any]) -> Repro:
    """The repro with other arguments; an input that nothing reads any more is gone."""

    def edit(graph: Graph) -> None:
        by_node: dict[str, dict[int | str, Any]] = {}
        for slot, value in values.items():
            by_node.setdefault(slot.node, {})[slot.place] = value
        for node in list(graph.nodes):
            if node.name in by_node:
                _change(node, by_node[node.name])

    return edited(repro, edit)


def _change(node: Node, values: Mapping[int | str, Any]) -> None:
    kwargs = {name: values.get(name, value) for name, value in node.kwargs.items()}
    args = [values.get(index, value) for index, value in enumerate(node.args)]
    while args and args[-1] is DROPPED:
        args.pop()
    # What stands before an argument that stays cannot be left out: it is written as its default, if any.
    parameters = parameters_of(node)
    for index, value in enumerate(args):
        if value is DROPPED:
            parameter = parameter_at(parameters, index)
            has_default = parameter is not None and parameter.has_default
            args[index] = parameter.default if parameter is not None and has_default else node.args[index]
    node.args = tuple(args)
    node.kwargs = {name: value for name, value in kwargs.items() if value is not DROPPED}


def _choices(value: Any, parameter: Parameter | None) -> Iterator[Any]:
    if parameter is not None and _is_number(value) and _is_number(parameter.default):
        return  # the default is what a reader expects; other numbers are no plainer
    if isinstance(value, Node):
        if parameter is not None and parameter.optional and not parameter.has_default:
            yield None
        return
    for choice in _plainer(value, "" if parameter is None else parameter.name):
        if cost_of(choice) < cost_of(value) or len(repr(choice)) < len(repr(value)):
            yield choice


def _plainer(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, float):
        yield from (1.0, 0.0, _short(value))
    elif isinstance(value, tuple | list):
        if value and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            yield from _plainer_list(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        # Dimensions count from 0; other numbers of things mostly from 1.
        if "dim" in name or value < 0:
            yield 0
        yield 1


def _plainer_list(value: Sequence[int]) -> Iterator[Sequence[int]]:
    kind = tuple if isinstance(value, tuple) else list
    plain = kind(min(item, 1) if item > 0 else 0 for item in value)
    if len(value) > 1:
        yield plain[:1]
        yield kind(value[:1])
    yield plain


def _short(value: float) -> float:
    """One digit of it: 0.3535533 is as good as 0.4, and where it is not the oracle says so."""
    return float(f"{value:.0e}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_getitem(node: Node) -> bool:
    """Taking one of several results: another index is another result, not a plainer one."""
    return getattr(node.target, "__name__", "") == "getitem"
