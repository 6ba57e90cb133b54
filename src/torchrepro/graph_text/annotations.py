"""What a node computes, next to its name: `f32[s0, 8].stride(8, 1)`, `sym(2*s0)`, `(f32[3], i64[3])`.

Sizes and strides keep their expressions over the symbols as text; `metadata.py` gives them a
meaning again. Size-less tensors are `f32[()]`, since Python has no empty subscript.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.graph_text.syntax import DTYPES
from torchrepro.nouns.errors import GraphTextError

Dimension = int | str
"""A number, or an expression over symbols in normal form (as `ast.unparse` writes it)."""

NOTE_KEY = "torchrepro"
"""Where `read_graph` leaves a node's note in `node.meta`."""

_DTYPES: dict[str, torch.dtype] = {short: getattr(torch, name) for short, name in DTYPES.items()}
_SHORT = {dtype: short for short, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class TensorNote:
    """A tensor without its data. `stride` is None where it is contiguous or the layout has none."""

    dtype: torch.dtype
    shape: tuple[Dimension, ...]
    stride: tuple[Dimension, ...] | None = None
    device: str = "cpu"
    layout: str = "strided"


@dataclass(frozen=True)
class SymbolNote:
    """A number that is only known when the graph runs: `sym(2*s0)`."""

    kind: str
    """`sym` for int, `symfloat`, `symbool`."""
    expression: str


Note = TensorNote | SymbolNote | tuple["Note | None", ...]


def note_of_node(node: torch.fx.Node) -> Note | None:
    """Return the note of a node from the metadata it has: AOT's, Dynamo's, ours, or a shape propagation's."""
    for key in ("val", "example_value"):
        if key in node.meta:
            return note_of_value(node.meta[key])
    if NOTE_KEY in node.meta:
        note: Note | None = node.meta[NOTE_KEY]
        return note
    return note_of_value(node.meta.get("tensor_meta"))


def note_of_input(node: torch.fx.Node) -> Note | None:
    """Return the note that the text gives an input, whatever values it has had since."""
    note: Note | None = node.meta.get(NOTE_KEY)
    return note_of_node(node) if note is None else note


def note_of_value(value: Any) -> Note | None:
    """Return the note of an example value; None for what has no size (numbers, strings, modules)."""
    if isinstance(value, torch.Tensor):
        return _note_of_tensor(value)
    for kind, type_ in SYMBOL_KINDS.items():
        if isinstance(value, type_):
            text = expression_of(value)
            return SymbolNote(kind, text) if isinstance(text, str) else None
    if type(value).__name__ == "TensorMetadata" and hasattr(value, "dtype"):
        shape = _dimensions(value.shape)
        return None if shape is None else TensorNote(value.dtype, shape)
    if isinstance(value, tuple | list):
        notes = tuple(note_of_value(item) for item in value)
        return notes if any(note is not None for note in notes) else None
    return None


SYMBOL_KINDS: dict[str, type] = {"sym": torch.SymInt, "symfloat": torch.SymFloat, "symbool": torch.SymBool}


def expression_of(value: Any) -> str | int | float | bool | None:
    """Return the expression of a symbolic number (a plain number if it is constant, None if it has none).

    Checked on torch 2.11 to 2.15.
    """
    node = value.node
    constant = node.constant if node.is_constant() else None
    if constant is not None:
        return constant  # type: ignore[no-any-return]
    expression = getattr(node, "expr", None)
    if expression is None:
        return None
    if expression.is_number and isinstance(value, torch.SymInt):
        return int(expression)
    try:
        return ast.unparse(ast.parse(str(expression), mode="eval"))
    except SyntaxError:
        return None


def _dimensions(sizes: Sequence[Any]) -> tuple[Dimension, ...] | None:
    found = [size if isinstance(size, int) else expression_of(size) for size in sizes]
    known = tuple(size for size in found if isinstance(size, int | str))
    return known if len(known) == len(sizes) else None


def _note_of_tensor(tensor: torch.Tensor) -> TensorNote | None:
    shape = _dimensions(tensor.shape)
    if shape is None:
        return None
    strided = tensor.layout is torch.strided and not tensor.is_nested and not _is_contiguous(tensor)
    return TensorNote(
        dtype=tensor.dtype,
        shape=shape,
        stride=_dimensions(tensor.stride()) if strided else None,
        device=str(tensor.device),
        layout=str(tensor.layout).removeprefix("torch."),
    )


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """Return whether all strides are contiguous; `Tensor.is_contiguous` ignores sizes 1 and 0, and guards."""
    expected: Any = 1
    for size, step in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if _sympy(step) != expected:
            return False
        expected = expected * (_sympy(size) or 1)  # only a size of 0 is false
    return True


def _sympy(size: Any) -> Any:
    constant = size if isinstance(size, int) else expression_of(size)
    return constant if isinstance(constant, int) else size.node.expr


def write_note(note: Note | None) -> str:
    if note is None:
        return "None"
    if isinstance(note, tuple):
        return "(" + "".join(f"{write_note(item)}, " for item in note).rstrip(" ") + ")"
    if isinstance(note, SymbolNote):
        return f"{note.kind}({note.expression})"
    dtype = _SHORT.get(note.dtype) or str(note.dtype).removeprefix("torch.")
    text = f"{dtype}[{', '.join(str(size) for size in note.shape) or '()'}]"
    if note.stride is not None:
        text += f".stride({', '.join(str(step) for step in note.stride)})"
    if note.layout != "strided":
        text += f'.layout("{note.layout}")'
    return text if note.device == "cpu" else text + f'.on("{note.device}")'


def read_note(expression: ast.expr) -> Note | None:
    """Return the note that an annotation's syntax tree describes."""
    match expression:
        case ast.Constant(value=None):
            return None
        case ast.Tuple(elts=items):
            return tuple(read_note(item) for item in items)
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            sizes = index.elts if isinstance(index, ast.Tuple) else [index]
            return TensorNote(_dtype(name), tuple(_dimension(size) for size in sizes))
        case ast.Call(func=ast.Name(id="sym" | "symfloat" | "symbool" as kind), args=[value], keywords=[]):
            return SymbolNote(kind, ast.unparse(value))
        case ast.Call(func=ast.Attribute(value=inner, attr=attribute), args=args, keywords=[]):
            note = read_note(inner)
            if isinstance(note, TensorNote):
                return _with_attribute(note, attribute, args)
    raise GraphTextError(
        f"{ast.unparse(expression)} does not describe a value",
        next_step='write it like f32[2, 8].stride(1, 2).on("cuda:0") or remove it',
    )


def _with_attribute(note: TensorNote, attribute: str, args: list[ast.expr]) -> TensorNote:
    match attribute, args:
        case "stride", _:
            return replace(note, stride=tuple(_dimension(step) for step in args))
        case "on", [ast.Constant(value=str(device))]:
            return replace(note, device=device)
        case "layout", [ast.Constant(value=str(layout))]:
            return replace(note, layout=layout)
    raise GraphTextError(
        f"a tensor's description has no .{attribute}(...) of this form",
        next_step='use .stride(...), .on("device") or .layout("name")',
    )


def _dtype(name: str) -> torch.dtype:
    dtype = _DTYPES.get(name) or getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise GraphTextError(f"{name} is no dtype", next_step="write f32, i64, b8, ... or torch's own name")
    return dtype


def _dimension(expression: ast.expr) -> Dimension:
    if isinstance(expression, ast.Constant) and type(expression.value) is int:
        return expression.value
    return ast.unparse(expression)
