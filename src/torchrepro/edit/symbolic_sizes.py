"""Which sizes are the same one: run a graph on tensors whose every size is an unknown of its own.

Integers in the arguments are unknowns as well. Where an op asks for two sizes to be equal, torch's shape
reasoning makes them one, or one a formula of others (a view of 8 x 16 as 128). What an op fixes is no unknown
any more. On graphs of a few ops this takes milliseconds; a chain of 500 views took ten minutes, so there is a
limit of time, and the answer is None after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from torchrepro.edit.arguments import Literal, literals_of, replaced
from torchrepro.edit.held_tensors import Held
from torchrepro.graph_text import resolver
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.state.fake_run import silent_torch
from torchrepro.torch_api.fake import FakeInterpreter, FakeTensorMode
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.modes import modes_kept
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

_SECONDS = 3.0
_MANY_OPS = 60


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of one of the repro's tensors, by their numbers."""

    held: int
    axis: int


Formula = Callable[[Mapping[str, int]], int | None]


@dataclass(frozen=True, eq=False)
class Dimension:
    """Sizes and numbers that are one and the same. `at` is where along it the failing element lies."""

    name: str
    size: int
    members: tuple[Axis | Literal, ...] = ()
    formula: Formula | None = None
    """Gives it from other dimensions, by name."""
    needs: frozenset[str] = frozenset()
    """Those others."""
    at: int = 0
    at_is_known: bool = False
    """The verdict says so; else it is a guess."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(member for member in self.members if isinstance(member, Axis))

    @property
    def literals(self) -> tuple[Literal, ...]:
        return tuple(member for member in self.members if isinstance(member, Literal))


@dataclass(frozen=True, eq=False)
class Traced:
    """The dimensions of a graph, and those in the shapes of its results."""

    dimensions: tuple[Dimension, ...]
    in_shapes: frozenset[str] = frozenset()
    """Dimensions that the shape of some value depends on: sizes, and not factors or exponents."""
    results: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """For each result the dimensions along its axes; empty for what is none."""


def trace_sizes(repro: Repro, held: Sequence[Held]) -> Traced | None:
    """The dimensions of a repro's graph; None where they cannot be had in a moment."""
    if repro.ops > _MANY_OPS or not all(map(_is_known, repro.graph.graph.nodes)):
        return None
    with silent_torch(), same_randomness(capture_rng_state()), modes_kept():  # torch logs what it cannot tell
        try:
            return _Tracer(repro, held).traced()
        except Exception:
            # Whatever an op makes of unknown sizes: data that it needs, a kernel that is missing, too long.
            return None


class _TooLong(Exception):
    pass


class _Tracer(FakeInterpreter):
    """Runs the graph, with an unknown for every size and number above 1.

    Checked on torch 2.11 to 2.15 (`ShapeEnv`, `StatelessSymbolicContext`, `ConstantSource`).
    """

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

    def traced(self) -> Traced:
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
        return Traced(tuple(self._dimensions()), frozenset(in_shapes), along)

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
                    continue  # an op has fixed it: the number of a dimension, say
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
    """An op of torch's own that leaves no state behind if it is the last one to run."""
    if node.op == "call_module":
        return False
    if node.op != "call_function" or isinstance(node.target, OpOverload | OpOverloadPacket):
        return True
    target: Any = node.target
    return resolver.path_of(target) is not None and not getattr(target, "__name__", "_").startswith("_")
