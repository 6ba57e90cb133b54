"""Example values for a graph that was read from text: what compilers expect on every node.

A graph from a compiler's front end carries a fake tensor for each node, with sizes as expressions over
symbols. Text keeps the expressions of the inputs; everything else follows by running the graph on fakes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.fx import GraphModule
from torch.fx.node import Node

from torchrepro.graph_text.annotations import (
    Dimension,
    Note,
    SymbolNote,
    TensorNote,
    note_of_input,
    note_of_node,
    write_note,
)
from torchrepro.graph_text.symbols import Symbols, plain_number, symbolic_number
from torchrepro.graph_text.syntax import symbol_names
from torchrepro.nouns.errors import GraphTextError
from torchrepro.nouns.repro import Symbol
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.fake import (
    FakeInterpreter,
    FakeTensor,
    FakeTensorMode,
    compute_unbacked_bindings,
    extract_tensor_metadata,
    snapshot_fake,
)
from torchrepro.torch_api.modes import is_traceable_wrapper_subclass, modes_kept
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload
from torchrepro.torch_api.pytree import tree_leaves
from torchrepro.torch_api.tensors import is_functorch_wrapped

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def symbols_of(module: GraphModule) -> tuple[Symbol, ...]:
    """Return the symbols in the metadata of a captured graph, in order of appearance."""
    found: dict[str, Symbol] = {}
    for graph_module in _graph_modules(module):
        for node in graph_module.graph.nodes:
            for number in _symbolic_numbers(node.meta.get("val", node.meta.get("example_value"))):
                for symbol in sorted(number.node.expr.free_symbols, key=str):
                    found.setdefault(symbol.name, _describe(symbol, number.node.shape_env))
    return tuple(found.values())


def narrowed(symbol: Symbol, known: Any) -> Symbol:
    """Intersect the symbol's range with one of torch (`ValueRanges`). Checked on torch 2.11 to 2.15."""
    lowers = [bound for bound in (symbol.lower, _bound(known.lower)) if bound is not None]
    uppers = [bound for bound in (symbol.upper, _bound(known.upper)) if bound is not None]
    return replace(symbol, lower=max(lowers, default=None), upper=min(uppers, default=None))


def restore_metadata(
    module: GraphModule, inputs: Sequence[Any], symbols: Sequence[Symbol] = (), *, scalars: bool = True
) -> FakeTensorMode:
    """Set `meta["val"]` and `meta["tensor_meta"]` on every node, as if traced on `inputs`.

    Sizes that the graph's text gives as expressions become symbolic again, with the values that `inputs` have
    and the ranges of `symbols`; where an input no longer fits its expression, its size is taken as it is.
    `scalars` allows a compiler to make symbols of values (`.item()`).
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(placeholders):
        raise GraphTextError(
            f"the graph takes {len(placeholders)} inputs and got {len(inputs)}",
            next_step="the bundle is damaged: take it again",
        )
    fakes = _FakeInputs(symbols, scalars=scalars or any(symbol.unbacked for symbol in symbols))
    notes = [note_of_input(node) for node in placeholders]
    for note, value in zip(notes, inputs, strict=True):
        fakes.learn(note, value)
    values = [fakes.make(note, value) for note, value in zip(notes, inputs, strict=True)]
    with modes_kept():
        visited = _propagate(module, fakes, values)
        for nested in _graph_modules(module):
            if id(nested) not in visited:
                visited |= _propagate_by_notes(nested, fakes)
    return fakes.mode


def fake_inputs(module: GraphModule) -> list[Any]:
    """Return the inputs' example values after `restore_metadata`: fake tensors, symbolic or plain numbers."""
    return [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]


class _FakeInputs:
    """Makes fake values for inputs, all in one FakeTensorMode and over one set of symbols."""

    def __init__(self, symbols: Sequence[Symbol], *, scalars: bool = True) -> None:
        self.symbols = Symbols(scalars=scalars)
        self.mode = FakeTensorMode(shape_env=self.symbols.env, allow_non_fake_inputs=True)
        self._described = {symbol.name: symbol for symbol in symbols}

    def learn(self, note: Note | None, value: Any) -> None:
        """Define the symbols that stand alone as a size of this input, by the size it has."""
        if isinstance(note, SymbolNote) and type(value) in (int, float):
            self._define(note.expression, value)
        elif (
            isinstance(note, TensorNote)
            and isinstance(value, torch.Tensor)
            and not isinstance(value, FakeTensor)
        ):
            for size, actual in zip(note.shape, value.shape, strict=False):
                self._define(str(size), actual)

    def _define(self, name: str, value: int | float | None) -> None:
        if not name.isidentifier() or name in self.symbols:
            return
        known = self._described.get(name, Symbol(name))
        if known.unbacked or name.startswith("u"):
            self.symbols.define(name, None, known.lower or 0, known.upper)
            return
        lower, upper = known.lower, known.upper
        if value is not None and ((lower or value) > value or (upper or value) < value):
            lower = upper = None  # an edited input outside the recorded range: the value wins
        self.symbols.define(name, known.hint if value is None else value, lower, upper)

    def make(self, note: Note | None, value: Any) -> Any:
        """Make the fake value of one input: by its note where that has symbols, else like `value`."""
        if isinstance(value, FakeTensor):
            return value
        if isinstance(note, SymbolNote) and not isinstance(value, torch.Tensor):
            return self._number(note.kind, note.expression, value)
        if isinstance(note, TensorNote):
            symbolic = any(isinstance(size, str) for size in (*note.shape, *(note.stride or ())))
            if value is None or (
                symbolic and isinstance(value, torch.Tensor) and len(note.shape) == value.dim()
            ):
                return self._symbolic_tensor(note, value)
        return self.mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value

    def _symbolic_tensor(self, note: TensorNote, value: torch.Tensor | None) -> torch.Tensor:
        shape = self._dimensions(note.shape, None if value is None else tuple(value.shape))
        dtype, device = (note.dtype, note.device) if value is None else (value.dtype, value.device)
        with self.mode:
            if note.stride is None and (value is None or value.is_contiguous()):
                fake = torch.empty(shape, dtype=dtype, device=device)
            else:
                actual = None if value is None else tuple(value.stride())
                steps = note.stride if note.stride is not None else actual
                stride = self._dimensions(steps or (), actual)
                fake = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        if value is None:
            return fake
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=value.requires_grad)
        return fake.requires_grad_(value.requires_grad)

    def _dimensions(self, sizes: Sequence[Dimension], actual: Sequence[int] | None) -> list[Any]:
        numbers = [None] * len(sizes) if actual is None else actual
        return [
            self._number("sym", size, number) if isinstance(size, str) else size if number is None else number
            for size, number in zip(sizes, numbers, strict=True)
        ]

    def _number(self, kind: str, text: str, value: Any) -> Any:
        """Return the symbolic number of an expression; `value` itself where the expression contradicts it."""
        for name in symbol_names(ast.parse(text, mode="eval").body):
            self._define(name, value if name == text else None)
        expression = self.symbols.parse(text)
        known = expression.xreplace(self.symbols.env.backed_var_to_val)
        if value is not None and getattr(known, "is_number", False) and not sympy.Eq(known, value):
            return value
        return symbolic_number(self.symbols.env, kind, expression)


class _Propagation(FakeInterpreter):
    """Runs a graph on fakes and leaves each result on its node."""

    def __init__(self, module: GraphModule, fakes: _FakeInputs) -> None:
        super().__init__(module, fakes.mode)
        self._fakes = fakes
        self._captured = any(_is_captured(node) for node in module.graph.nodes)

    def run_node(self, n: Node) -> Any:
        # The symbols that the node creates have the numbers they have in the text.
        numbers = re.findall(r"\bu(\d+)\b", write_note(note_of_node(n)))
        self._fakes.symbols.number_next_unbacked(map(int, numbers))
        result = super().run_node(n)
        if n.op == "output":
            return result
        value = torch.fx.node.map_aggregate(result, self._example)
        if n.op == "placeholder" and isinstance(value, torch.Tensor):
            value = value.requires_grad_(result.requires_grad)
        if value is not None:
            n.meta["val"] = value
            if self._captured:
                n.meta["example_value"] = value
            if any(isinstance(item, torch.Tensor) for item in tree_leaves(value)):
                n.meta["tensor_meta"] = torch.fx.node.map_aggregate(
                    value,
                    lambda item: (
                        extract_tensor_metadata(item)
                        if isinstance(item, torch.Tensor) and not item.is_sparse
                        else item
                    ),
                )
            bindings = compute_unbacked_bindings(self.mode.shape_env, result)
            if bindings:
                n.meta["unbacked_bindings"] = bindings
        return result

    def _example(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            return snapshot_fake(value)
        if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
            if is_functorch_wrapped(value):
                return None  # only valid inside its transform
            return snapshot_fake(self.fake(value))
        if is_traceable_wrapper_subclass(value):
            return value
        return value if isinstance(value, (*_SYMBOLIC, int, float, bool)) else None


def _propagate(module: GraphModule, fakes: _FakeInputs, values: Sequence[Any]) -> set[int]:
    """Run a graph and the nested graphs that its operators call on fakes; return the ids of those run."""
    visited = {id(module)}
    nested = [other for other in _graph_modules(module) if other is not module]

    def watch(graph_module: GraphModule) -> Any:
        def forward(*args: Any) -> Any:
            visited.add(id(graph_module))
            return _Propagation(graph_module, fakes).run(*args)

        return forward

    forwards = [graph_module.__dict__.get("forward") for graph_module in nested]
    for graph_module in nested:
        graph_module.__dict__["forward"] = watch(graph_module)
    try:
        with fakes.mode:
            _Propagation(module, fakes).run(*values)
    finally:
        for graph_module, forward in zip(nested, forwards, strict=True):
            graph_module.__dict__.pop("forward")
            if forward is not None:
                graph_module.__dict__["forward"] = forward
    return visited


def _propagate_by_notes(module: GraphModule, fakes: _FakeInputs) -> set[int]:
    """Run a nested graph that no operator ran (the score of an attention) on fakes made from its notes.

    A tensor used as an index stays a tensor there, as in the attention itself.
    Checked on torch 2.11 to 2.15 (`TransformGetItemToIndex`).
    """
    notes = [note_of_input(node) for node in module.graph.nodes if node.op == "placeholder"]
    if any(note is None for note in notes):
        return set()
    with dynamo.TransformGetItemToIndex():
        return _propagate(module, fakes, [fakes.make(note, None) for note in notes])


def _graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    return (found for found in module.modules() if isinstance(found, GraphModule))


def _symbolic_numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, _SYMBOLIC):
        if hasattr(value.node, "expr") and hasattr(value.node, "shape_env"):
            yield value
    elif isinstance(value, torch.Tensor):
        yield from _symbolic_numbers(tuple(value.shape))
        if value.layout is torch.strided and not value.is_nested:
            yield from _symbolic_numbers(tuple(value.stride()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _symbolic_numbers(item)


def _describe(symbol: sympy.Symbol, env: Any) -> Symbol:
    """Return what a ShapeEnv records of a symbol. Checked on torch 2.11 to 2.15."""
    hint = env.backed_var_to_val.get(symbol)
    known = env.var_to_range.get(symbol)
    return Symbol(
        name=symbol.name,
        hint=plain_number(hint),
        lower=_bound(known.lower) if known is not None else None,
        upper=_bound(known.upper) if known is not None else None,
        unbacked=hint is None,
    )


def _bound(value: Any) -> int | None:
    """Return a finite bound as a number. Torch's `int_oo` and its largest size stand for "none"."""
    if not getattr(value, "is_Integer", False) or abs(int(value)) >= 2**62:
        return None
    return int(value)


def _is_captured(node: Node) -> bool:
    """Return whether only graphs before AOT have such nodes: Inductor's passes there read `example_value`."""
    if node.op == "call_function":
        operators = isinstance(node.target, OpOverload | HigherOrderOperator)
        return not operators and getattr(node.target, "__module__", "") not in ("_operator", "math")
    return node.op in ("call_method", "call_module")
