"""Inputs of other sizes for a graph with symbols, and for one that is to be captured with dynamic shapes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sympy
import torch

from torchrepro.graph_text.annotations import Note, SymbolNote, TensorNote, note_of_input
from torchrepro.graph_text.symbols import plain_number, to_sympy
from torchrepro.graph_text.syntax import symbol_names
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Repro

SIZES = (2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 129, 257, 1025)
"""Around the widths of vectors and tiles; 0 and 1 are compiled separately by torch."""
_ELEMENTS = 1 << 22
"""Inputs are not made larger than this, unless they were."""


@dataclass(frozen=True, eq=False)
class Resized:
    """Inputs of other sizes: `what` has become `size`."""

    what: str
    size: int
    inputs: tuple[Any, ...]


def resized_symbols(repro: Repro) -> Iterator[Resized]:
    """Yield inputs with another size for each symbol alone, then for all at once."""
    given, known = list(zip(notes_of_inputs(repro), repro.inputs, strict=False)), known_sizes(repro)
    ranges = {s.name: (s.lower or 2, s.upper) for s in repro.symbols if type(known.get(s.name)) is int}
    together = [tuple(ranges)] if len(ranges) > 1 else []
    for names in (*((name,) for name in ranges), *together):
        for size in SIZES:
            lower, upper = (
                max(ranges[name][0] for name in names),
                [ranges[name][1] for name in names],
            )
            if size < lower or any(bound is not None and size > bound for bound in upper):
                continue
            if all(known[name] == size for name in names):
                continue
            sizes = {**known, **dict.fromkeys(names, size)}
            made = tuple(of_sizes(note, value, sizes) for note, value in given)
            if _is_small_enough(made, repro.inputs):
                yield Resized(", ".join(names), size, made)


def resized_together(inputs: tuple[Any, ...]) -> Iterator[Resized]:
    """Yield inputs in which all dimensions of one size have another; parameters stay as they are."""
    free = [
        (index, value)
        for index, value in enumerate(inputs)
        if type(value) is torch.Tensor and value.layout is torch.strided
    ]
    counts: dict[int, int] = {}
    for _, value in free:
        for size in value.shape:
            if size > 1:
                counts[size] = counts.get(size, 0) + 1
    for former in counts:
        for size in SIZES:
            if size == former:
                continue
            made = list(inputs)
            for index, value in free:
                made[index] = resized(value, [size if old == former else old for old in value.shape])
            if _is_small_enough(made, inputs):
                yield Resized(f"each size {former}", size, tuple(made))


def resized(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Return the values of a tensor in another shape, repeated where it is longer, in the same layout.

    Repeated floats are changed a little, so that there are no new ties; integers may be indices and stay.
    """
    if list(tensor.shape) == shape:
        return tensor
    with torch.no_grad():
        found = tensor.detach()
        for dim, (old, new) in enumerate(zip(tensor.shape, shape, strict=True)):
            if old == new or old == 0:
                continue
            if tensor.stride(dim) == 0:
                found = found.narrow(dim, 0, 1).expand(*found.shape[:dim], new, *found.shape[dim + 1 :])
                continue
            places = torch.arange(new, device=tensor.device)
            found = found.index_select(dim, places % old)
            if found.is_floating_point() and new > old:
                rounds = (places // old).to(torch.float32) / 64
                factor = (1 + rounds).reshape([-1 if axis == dim else 1 for axis in range(found.dim())])
                found = (found * factor).to(tensor.dtype)
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
        if order != list(range(tensor.dim())) and 0 not in strides:
            back = [order.index(dim) for dim in range(tensor.dim())]
            found = found.permute(order).contiguous().permute(back)
    return found.requires_grad_(tensor.requires_grad)


def notes_of_inputs(repro: Repro) -> list[Note | None]:
    return [note_of_input(node) for node in repro.graph.graph.find_nodes(op="placeholder")]


def known_sizes(repro: Repro) -> dict[str, int | float]:
    """Return the values of the symbols: those that the inputs have, else the hints."""
    known = {symbol.name: symbol.hint for symbol in repro.symbols if symbol.hint is not None}
    for note, value in zip(notes_of_inputs(repro), repro.inputs, strict=False):
        known.update((name, size) for name, size in _named_sizes(note, value) if name in known)
    return known


def symbols_in(size: int | str) -> frozenset[str]:
    """Return the symbols in the text of a size."""
    return frozenset(symbol_names(ast.parse(str(size), mode="eval").body))


def _named_sizes(note: Note | None, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the symbols that stand alone as a size of an input, each with the size it has."""
    if isinstance(note, SymbolNote) and type(value) is int:
        yield note.expression, value
    elif isinstance(note, TensorNote) and isinstance(value, torch.Tensor):
        yield from ((str(size), actual) for size, actual in zip(note.shape, value.shape, strict=False))


def of_sizes(note: Note | None, value: Any, sizes: Mapping[str, Any]) -> Any:
    """Return an input with the sizes that its note says."""
    if isinstance(note, SymbolNote) and type(value) is int:
        return _number(note.expression, sizes)
    if isinstance(note, TensorNote) and type(value) in (torch.Tensor, torch.nn.Parameter):
        shape = [_number(size, sizes) if isinstance(size, str) else size for size in note.shape]
        return resized(value, shape) if len(shape) == value.dim() else value
    return value


Row = Callable[[int], Repro]
"""Returns the repro of one row of the batch, by its number."""


def ways_to_cut(repro: Repro, size: int) -> Iterator[Row]:
    """Yield the ways to cut one row out of a batch of `size`; only eager can tell which keeps its meaning."""
    yield from _by_symbol(repro, size) if repro.symbols else _by_size(repro, size)


def _by_size(repro: Repro, size: int) -> Iterator[Row]:
    """Yield ways to cut: in all inputs of that many rows but parameters, in those too, in the first alone."""
    fitting = [
        index
        for index, value in enumerate(repro.inputs)
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size
    ]
    data = [index for index in fitting if not isinstance(repro.inputs[index], torch.nn.Parameter)]
    for batched in dict.fromkeys(frozenset(each) for each in (data, fitting, data[:1]) if each):
        yield partial(_with_row, repro, batched)


def _with_row(repro: Repro, batched: frozenset[int], number: int) -> Repro:
    cut = (_cut(value, number) if index in batched else value for index, value in enumerate(repro.inputs))
    return replace(repro, inputs=tuple(cut))


def _cut(value: torch.Tensor, number: int) -> torch.Tensor:
    return value.detach()[number : number + 1].clone().requires_grad_(value.requires_grad)


def _by_symbol(repro: Repro, size: int) -> Iterator[Row]:
    """Yield a way to cut for each symbol that is the number of rows wherever it occurs in a tensor."""
    known = known_sizes(repro)
    shapes = [note.shape for note in notes_of_inputs(repro) if isinstance(note, TensorNote)]
    for name in (name for name, value in known.items() if value == size):
        elsewhere = [text for shape in shapes for text in shape[1:] if name in symbols_in(text)]
        first = [shape[0] for shape in shapes if shape and name in symbols_in(shape[0])]
        if first and not elsewhere and all(text == name for text in first):
            yield partial(_with_row_of_symbol, repro, name)


def _with_row_of_symbol(repro: Repro, name: str, number: int) -> Repro:
    """Return the repro of a row; it is captured again, because its sizes are symbols for more rows alone."""
    sizes = {**known_sizes(repro), name: 1}
    inputs = [
        _cut(value, number)
        if isinstance(note, TensorNote) and note.shape and note.shape[0] == name
        else of_sizes(note, value, sizes)
        for note, value in zip(notes_of_inputs(repro), repro.inputs, strict=False)
    ]
    compiler = replace(repro.compiler, recapture=True, dynamic=False)
    return replace(repro, inputs=tuple(inputs), symbols=(), compiler=compiler)


def _number(text: str, sizes: Mapping[str, Any]) -> int:
    found = to_sympy(ast.parse(text, mode="eval").body, lambda name: sympy.sympify(sizes[name]))
    return int(plain_number(found) or 0)


def _is_small_enough(made: Any, former: Any) -> bool:
    elements, before = (sum(tensor.numel() for _, tensor in tensors_in(each)) for each in (made, former))
    return elements <= max(_ELEMENTS, before)
