"""Sizes as symbols: find out which sizes are the same one, and give the symbols of a graph their numbers.

To find out, a graph is run on tensors whose every size is a separate unknown, and integers in the arguments
are unknowns as well. Where an op requires two sizes to be equal, torch's shape reasoning makes them one, or
one a formula of others (a view of 8 x 16 as 128). A size that an op fixes is no longer an unknown. On graphs
of a few ops this takes milliseconds; a chain of 500 views took ten minutes, so there is a timeout, after
which the result is None.
"""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.arguments import Literal, literals_of, replaced
from torchrepro.edit.held_tensors import Held
from torchrepro.edit.nested_graphs import drop_fixed_inputs
from torchrepro.edit.surgery import edited, put_in_place_of, rebuilt, with_all_edited
from torchrepro.graph_text import resolver
from torchrepro.graph_text.annotations import (
    NOTE_KEY,
    Note,
    SymbolNote,
    TensorNote,
    expression_of,
    note_of_input,
)
from torchrepro.graph_text.symbols import plain_number, to_sympy
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.state.fake_run import run_on_fakes, silent_torch
from torchrepro.torch_api.fake import FakeInterpreter, FakeTensorMode
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.modes import modes_kept
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

_SECONDS = 3.0
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_VALUES = ("val", "example_value", "tensor_meta", "unbacked_bindings")
_MANY_OPS = 60


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of one of the repro's tensors: the index of the tensor, and of the dimension."""

    held: int
    axis: int


Formula = Callable[[Mapping[str, int]], int | None]
Results = Mapping[int, tuple[str, ...]]
"""The names of the dimensions along the axes of each result."""


@dataclass(frozen=True, eq=False)
class Dimension:
    """Sizes and numbers that change together. `at` is the position of the failing element along it."""

    name: str
    size: int
    members: tuple[Axis | Literal, ...] = ()
    formula: Formula | None = None
    """Computes its size from those of other dimensions, by name."""
    needs: frozenset[str] = frozenset()
    """The names of those others."""
    in_shapes: bool = False
    """The shape of some value depends on it: it is a size, and not a factor or an exponent."""
    at: int = 0
    at_is_known: bool = False
    """`at` is from the verdict; else it is a guess."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(member for member in self.members if isinstance(member, Axis))

    @property
    def literals(self) -> tuple[Literal, ...]:
        return tuple(member for member in self.members if isinstance(member, Literal))


def trace_sizes(repro: Repro, held: Sequence[Held]) -> tuple[list[Dimension], Results] | None:
    """Return the dimensions of a repro's graph, and those of its results; None on a timeout or an error."""
    if repro.ops > _MANY_OPS or not all(map(_is_known, repro.graph.graph.nodes)):
        return None
    with silent_torch(), same_randomness(capture_rng_state()), modes_kept():  # torch logs undecided sizes
        try:
            return _Tracer(repro, held).traced()
        except Exception:
            # An op may raise anything on unknown sizes: it needs data, has no fake kernel, or takes too long.
            return None


class _TooLong(Exception):
    pass


class _Tracer(FakeInterpreter):
    """An interpreter of the graph with an unknown for every size and number above 1."""

    def __init__(self, repro: Repro, held: Sequence[Held]) -> None:
        from torchrepro.torch_api.fake import ShapeEnv

        self._env = ShapeEnv(duck_shape=False, specialize_zero_one=False)
        super().__init__(repro.graph, FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True))
        self._repro = repro
        self._members: list[tuple[Axis | Literal, int, Any]] = []
        self._shapes: list[Any] = []
        self._deadline = math.inf
        self._fakes = {
            id(each.tensor): self._with_unknowns(number, each.tensor)
            for number, each in enumerate(held)
            if each.is_of_the_call
        }

    def traced(self) -> tuple[list[Dimension], Results]:
        self._deadline = time.monotonic() + _SECONDS
        placeholders = self._repro.graph.graph.find_nodes(op="placeholder")
        grad = torch.is_grad_enabled() and self._repro.place is not Place.AFTER_AOT
        inputs = [
            self._number(Literal(node.name, ()), value)
            if type(value) is int and value > 1
            else self.fake(value)
            for node, value in zip(placeholders, self._repro.inputs, strict=False)
        ]
        with self.mode, applied_modes(self._repro.ambient), torch.set_grad_enabled(grad):
            results = self.run(*inputs)
        if isinstance(results, torch.Tensor):
            results = (results,)
        along = {
            number: tuple(str(self._final(size)) for size in result.shape)
            for number, result in enumerate(results if isinstance(results, tuple | list) else ())
            if isinstance(result, torch.Tensor)
        }
        finals = map(self._final, self._shapes)
        in_shapes = {symbol.name for final in finals for symbol in getattr(final, "free_symbols", ())}
        for guard in self._env.guards:
            in_shapes |= {symbol.name for symbol in self._env.replace(guard.expr).free_symbols}
        return [replace(each, in_shapes=each.name in in_shapes) for each in self._dimensions()], along

    def run_node(self, n: Node) -> Any:
        if time.monotonic() > self._deadline:
            raise _TooLong
        result = super().run_node(n)
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self._shapes.extend(value.shape)
        return result

    def fetch_args_kwargs_from_env(self, n: Node) -> Any:
        numbers = {
            literal.path: self._number(literal, value) for literal, value in literals_of(n, int) if value > 1
        }
        args = replaced(n.args, ("args",), numbers)
        kwargs = replaced(n.kwargs, ("kwargs",), numbers)
        return self.map_nodes_to_values(args, n), self.map_nodes_to_values(kwargs, n)

    def fake(self, value: Any) -> Any:
        fake = self._fakes.get(id(value))
        return super().fake(value) if fake is None else fake

    def _with_unknowns(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        from torchrepro.torch_api.dynamo import ConstantSource
        from torchrepro.torch_api.fake import DimDynamic, StatelessSymbolicContext

        kinds = [DimDynamic.DYNAMIC if size > 1 else DimDynamic.STATIC for size in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        source = ConstantSource(f"tensor_{number}")
        fake = self.mode.from_tensor(tensor, symbolic_context=context, source=source)
        sizes: Any = fake.shape
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt):
                self._members.append((Axis(number, axis), tensor.shape[axis], size.node.expr))
        return fake

    def _number(self, literal: Literal, value: int) -> Any:
        from torchrepro.torch_api.dynamo import ConstantSource
        from torchrepro.torch_api.fake import DimDynamic

        source = ConstantSource(f"number_{len(self._members)}")
        symbol = self._env.create_symbol(
            value, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        self._members.append((literal, value, symbol))
        return self._env.create_symintnode(symbol, hint=value, source=source)

    def _final(self, size: Any) -> Any:
        return self._env.replace(size.node.expr) if isinstance(size, torch.SymInt) else size

    def _dimensions(self) -> Iterator[Dimension]:
        groups: dict[Any, list[Axis | Literal]] = {}
        sizes: dict[Any, int] = {}
        for number, (member, size, expression) in enumerate(self._members):
            final = self._env.replace(expression)
            if not final.free_symbols:
                if isinstance(member, Literal):
                    continue  # fixed by an op: the index of a dimension, for example
                final = f"fixed {final} {number}"
            groups.setdefault(final, []).append(member)
            sizes.setdefault(final, size)
        for final, members in groups.items():
            plain = Dimension(str(final), sizes[final], tuple(members))
            if isinstance(final, str) or final.is_Symbol:
                yield plain
            else:
                needs = frozenset(symbol.name for symbol in final.free_symbols)
                yield replace(plain, formula=_formula(final), needs=needs)


def _formula(expression: Any) -> Formula:
    def value(sizes: Mapping[str, int]) -> int | None:
        known = {symbol: sizes[symbol.name] for symbol in expression.free_symbols if symbol.name in sizes}
        found = expression.subs(known)
        return int(found) if found.is_Integer and found > 0 else None

    return value


def _is_known(node: Node) -> bool:
    """Return whether a node calls a torch op that leaves no state behind if the run stops after it."""
    if node.op == "call_module":
        return False
    if node.op != "call_function" or isinstance(node.target, OpOverload | OpOverloadPacket):
        return True
    target: Any = node.target
    return resolver.path_of(target) is not None and not getattr(target, "__name__", "_").startswith("_")


def with_numbers(repro: Repro, names: Collection[str]) -> Repro:
    """Return the repro with the named symbols replaced by their values in its inputs."""
    known = {name: value for name, value in numbers_of(repro).items() if name in names}
    symbols = tuple(symbol for symbol in repro.symbols if symbol.name not in known)
    module = with_all_edited(repro.graph, lambda path, graph: _fix(graph, known))
    drop_fixed_inputs(module, lambda node: _number(node) is not None)
    found = rebuilt(repro, module.graph, module, drop=lambda node: _number(node) is not None)
    found = replace(found, symbols=symbols)
    return found if symbols else with_folded_numbers(found)


def numbers_of(repro: Repro) -> dict[str, int | float]:
    """Return the symbols known before the graph runs: their values in the inputs, else their hints."""
    found = {s.name: s.hint for s in repro.symbols if s.hint is not None and not s.unbacked}
    unbacked = {symbol.name for symbol in repro.symbols if symbol.unbacked}
    placeholders = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, repro.inputs, strict=False):
        for text, number in _sizes(note_of_input(node), value):
            if text.isidentifier() and text not in unbacked and not text.startswith("u"):
                found[text] = number
    return found


def with_folded_numbers(repro: Repro) -> Repro:
    """Return the repro with the sizes that its graph computes replaced by their values, where known."""
    calls = {node.name for node in repro.graph.graph.nodes if node.op in CALLS}
    numbers = {
        name: value
        for name, value in run_on_fakes(repro).by_name.items()
        if name in calls and isinstance(value, int | float) and not isinstance(value, _SYMBOLIC)
    }

    def edit(graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.name in numbers:
                put_in_place_of(node, numbers[node.name])

    return edited(repro, edit) if numbers else repro


def _fix(graph: Graph, known: Mapping[str, int | float]) -> None:
    """Replace the known symbols by their values, in notes and arguments.

    Placeholders that are numbers now stay: `rebuilt` removes them together with their inputs.
    """
    for node in list(graph.nodes):
        note = _with_known(note_of_input(node), known)
        node.meta = {key: value for key, value in node.meta.items() if key not in _VALUES}
        node.meta[NOTE_KEY] = note
        node.args, node.kwargs = (
            torch.fx.node.map_aggregate(held, lambda value: _plain(value, known))
            for held in (node.args, node.kwargs)
        )
        number = _number(node)
        if number is not None and node.op in (*CALLS, "placeholder"):
            put_in_place_of(node, number)


def _number(node: Node) -> int | float | None:
    """Return the fixed value of a node, by its note; None if it has none."""
    note = node.meta.get(NOTE_KEY)
    return _as_number(note.expression) if isinstance(note, SymbolNote) and note.kind != "symbool" else None


def _as_number(text: int | str) -> int | float | None:
    try:
        value = ast.literal_eval(str(text))
    except ValueError:
        return None
    return value if isinstance(value, int | float) else None


def _with_known(note: Note | None, known: Mapping[str, int | float]) -> Note | None:
    if isinstance(note, tuple):
        return tuple(_with_known(item, known) for item in note)
    if isinstance(note, SymbolNote):
        return replace(note, expression=str(_evaluated(note.expression, known)))
    if isinstance(note, TensorNote):
        shape = tuple(_evaluated(size, known) for size in note.shape)
        stride = None if note.stride is None else tuple(_evaluated(step, known) for step in note.stride)
        fixed = [size for size in shape if isinstance(size, int)]
        if len(fixed) == len(shape) and stride == torch.empty(fixed, device="meta").stride():
            stride = None  # the strides of a contiguous tensor are not written
        return replace(note, shape=shape, stride=stride)
    return note


def _evaluated(text: int | str, known: Mapping[str, int | float]) -> int | str:
    """Return an expression with the known symbols substituted: a number if no symbol is left."""
    if isinstance(text, int):
        return text

    def symbol(name: str) -> Any:
        return sympy.sympify(known[name]) if name in known else sympy.Symbol(name, integer=True)

    found = to_sympy(ast.parse(text, mode="eval").body, symbol)
    if not getattr(found, "is_number", False):
        return str(found)
    number = plain_number(found)
    return number if isinstance(number, int) else str(number)


def _plain(value: Any, known: Mapping[str, int | float]) -> Any:
    """Return an argument; a symbolic number as a plain one if all of its symbols are known."""
    if not isinstance(value, _SYMBOLIC):
        return value
    text = expression_of(value)
    number = text if not isinstance(text, str) else _as_number(_evaluated(text, known))
    return value if number is None else number


def _sizes(note: Note | None, value: Any) -> list[tuple[str, Any]]:
    """Return the expressions in the note of an input, each with its value in the input."""
    if isinstance(note, SymbolNote) and isinstance(value, int | float) and not isinstance(value, bool):
        return [(note.expression, value)]
    if isinstance(note, TensorNote) and isinstance(value, torch.Tensor):
        pairs = zip(note.shape, value.shape, strict=False)
        return [(size, int(actual)) for size, actual in pairs if isinstance(size, str)]
    return []
