"""Arguments of a graph's nodes: the numbers in them, their parameters, and plainer choices for each."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.cost import cost_of
from torchrepro.edit.plain_values import rounded
from torchrepro.edit.surgery import edited, has_effects
from torchrepro.graph_text.annotations import NOTE_KEY, TensorNote, note_of_node
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import OpOverload, schema_of, undispatched

Path = tuple[int | str, ...]
_SLICE = ("start", "stop", "step")
_EXAMPLES = ("val", "example_value", "tensor_meta", "unbacked_bindings", NOTE_KEY)


DROPPED: Any = object()
"""In the place of an argument: omit it, so that its default applies."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A value in the arguments of a node: `("args", 1, 0)` is the first of its second argument."""

    node: str
    path: Path


def literals_of(node: Node, kind: type) -> Iterator[tuple[Literal, Any]]:
    """Yield the values of one type in a node's arguments, at any depth."""
    if node.op not in CALLS:
        return
    for where, held in (("args", node.args), ("kwargs", node.kwargs)):
        for path, value in _leaves(held, (where,)):
            if type(value) is kind:
                yield Literal(node.name, path), value


def with_literals(repro: Repro, values: Mapping[Literal, Any]) -> Repro:
    """Return the repro with other values in its arguments.

    Notes on what nodes compute are removed: they describe other sizes and dtypes. Names of symbolic sizes
    stay with the inputs.
    """
    graph = copy.deepcopy(repro.graph.graph)
    given = iter(repro.inputs)
    for node in graph.nodes:
        changed = {literal.path: value for literal, value in values.items() if literal.node == node.name}
        if changed:
            node.args = replaced(node.args, ("args",), changed)
            node.kwargs = replaced(node.kwargs, ("kwargs",), changed)
        note = _note_still_true(node, next(given, None) if node.op == "placeholder" else None)
        node.meta = {key: value for key, value in node.meta.items() if key not in _EXAMPLES}
        if note is not None:
            node.meta[NOTE_KEY] = note
    return replace(repro, graph=GraphModule(repro.graph, graph, class_name="Graph"))


def _note_still_true(node: Node, value: Any) -> Any:
    """Return what is still true of a node: its symbolic sizes, and those that are known only at run time."""
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
    """Return the same structure, in plain containers, with some leaves changed and `DROPPED` ones removed."""
    if path in changed:
        return changed[path]
    if isinstance(value, tuple | list):
        items = [replaced(item, (*path, index), changed) for index, item in enumerate(value)]
        items = [item for item in items if item is not DROPPED]
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
    """Return the parameters of the first signature that takes a node's arguments; empty if none is known."""
    return next(_fitting_signatures(node), ())


def _fitting_signatures(node: Node) -> Iterator[tuple[Parameter, ...]]:
    for parameters in _signatures(node.op, node.target):
        if _takes(parameters, len(node.args), set(node.kwargs)):
            yield parameters


def dimensions_named(repro: Repro) -> list[Literal]:
    """Return the arguments that are the number of a dimension: 1 in `x.max(1)`, which also takes a tensor."""
    found = []
    for node in repro.graph.graph.nodes:
        for literal, _ in literals_of(node, int):
            places = (parameter_at(each, literal.path[1]) for each in _fitting_signatures(node))
            if any(parameter is not None and parameter.name in ("dim", "dims") for parameter in places):
                found.append(literal)
    return found


def can_be_left_out(node: Node, place: int | str) -> bool:
    """Return whether an argument has a default, or another signature omits it and those after it.

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
    """Return the parameter of a positional argument or of a keyword."""
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
    """Return the signatures of an op or a function, and of the ATen overloads of the same name.

    Checked on torch 2.11 to 2.15 (`OpOverloadPacket.overloads`).
    """
    if isinstance(target, OpOverload):
        return (_of_schema(target),)
    found = []
    if op == "call_function" and getattr(target, "__module__", "") != "_operator":
        with contextlib.suppress(TypeError, ValueError):  # a builtin: its overloads have the signatures
            parameters = list(inspect.signature(undispatched(target)).parameters.values())
            if not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
                found = [
                    tuple(
                        Parameter(p.name, p.default, p.kind is p.KEYWORD_ONLY, p.default is None)
                        for p in parameters
                    )
                ]
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    for overload in packet.overloads() if packet is not None else ():
        if overload != "out" and not overload.endswith("_out"):
            found.append(_of_schema(getattr(packet, overload)))
    return tuple(found)


def _of_schema(op: OpOverload) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            argument.name,
            argument.default_value if argument.has_default_value() else REQUIRED,
            argument.kwarg_only,
            argument.type.kind() == "OptionalType",
        )
        for argument in schema_of(op).arguments
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of a node: its position or its keyword."""

    node: str
    place: int | str
    choices: tuple[Any, ...] = field(default=(), compare=False)
    """A few values for it, plainest first."""
    is_default: bool = field(default=False, compare=False)
    """It is written as its default, so that omitting it changes nothing."""


def slots_of(repro: Repro) -> list[Slot]:
    """Return every argument that has a plainer choice."""
    found = []
    for node in repro.graph.graph.nodes:
        # Taking one of several results: another index is another result, not a plainer one.
        is_getitem = getattr(node.target, "__name__", "") == "getitem"
        if node.op not in CALLS or has_effects(node) or is_getitem:
            continue
        parameters = parameters_of(node)
        places: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        for place, value in places[1:] if node.op == "call_method" else places:
            parameter = parameter_at(parameters, place)
            choices = list(_choices(value, parameter))
            if can_be_left_out(node, place):
                choices.insert(0, DROPPED)
            if choices:
                found.append(Slot(node.name, place, tuple(choices), _is_default(value, parameter)))
    return found


def with_arguments(repro: Repro, values: Mapping[Slot, Any]) -> Repro:
    """Return the repro with other arguments, without the inputs that nothing reads any more."""

    def edit(graph: Graph) -> None:
        for node in graph.nodes:
            changed = {slot.place: value for slot, value in values.items() if slot.node == node.name}
            if changed:
                _change(node, changed)

    return edited(repro, edit)


def _change(node: Node, values: Mapping[int | str, Any]) -> None:
    parameters = parameters_of(node)
    args = [values.get(index, value) for index, value in enumerate(node.args)]
    while args and args[-1] is DROPPED:
        args.pop()
    # An argument before one that is kept cannot be omitted: it is written as its default, if any.
    for index, value in enumerate(args):
        if value is DROPPED:
            parameter = parameter_at(parameters, index)
            known = parameter is not None and parameter.has_default
            args[index] = parameter.default if parameter is not None and known else node.args[index]
    node.args = tuple(args)
    kwargs = {name: values.get(name, value) for name, value in node.kwargs.items()}
    node.kwargs = {name: value for name, value in kwargs.items() if value is not DROPPED}


def _choices(value: Any, parameter: Parameter | None) -> Iterator[Any]:
    """Yield plainer values; for a float also its first digit, which the oracle may reject as too few."""
    if parameter is not None and _is_number(value) and _is_number(parameter.default):
        return  # the default is what a reader expects; other numbers are no plainer
    choices: list[Any] = []
    if isinstance(value, Node):
        if parameter is not None and parameter.optional and not parameter.has_default:
            yield None
    elif isinstance(value, float):
        choices = [1.0, 0.0, rounded(value, 1)]
    elif isinstance(value, tuple | list) and value and all(type(item) is int for item in value):
        kind = tuple if isinstance(value, tuple) else list
        plain = kind(min(item, 1) if item > 0 else 0 for item in value)
        choices = [plain[:1], kind(value[:1]), plain] if len(value) > 1 else [plain]
    elif isinstance(value, int) and not isinstance(value, bool):
        # Dimensions count from 0, most other integers from 1.
        choices = [0, 1] if value < 0 or (parameter is not None and "dim" in parameter.name) else [1]
    for choice in choices:
        if cost_of(choice) < cost_of(value) or len(repr(choice)) < len(repr(value)):
            yield choice


def _is_default(value: Any, parameter: Parameter | None) -> bool:
    if parameter is None or isinstance(value, Node) or type(value) is not type(parameter.default):
        return False
    return bool(value == parameter.default)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
