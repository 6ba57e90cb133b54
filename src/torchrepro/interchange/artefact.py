"""What an artefact of PyTorch says, as data: the graph's class, its inputs, settings and how it was run.

Artefacts are Python files (`minifier_launcher.py`, `repro.py`, `fx_graph_runnable`). They are parsed, never
executed: a line that has a known form is read, any other is named in a note or in an error. Needs no torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrepro.graph_text.syntax import dotted_name
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place

LARGEST = 1 << 62
"""Maximum of a size, a stride or a number of bytes: torch keeps them as signed 64-bit integers."""
_DTYPE = re.compile(r"torch\.[a-z]\w{1,30}\Z", re.ASCII)
_DEVICE = re.compile(r"[a-z]{1,20}(:\d{1,3})?\Z", re.ASCII)
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "Max": max,
    "Min": min,
    "FloorDiv": lambda left, right: left // right,
    "Mod": lambda left, right: left % right,
    "PythonMod": lambda left, right: left % right,
}


class ArtefactError(TorchReproError):
    """An artefact has a line that cannot be read."""

    def __init__(self, tree: ast.AST | int, fact: str, next_step: str = "") -> None:
        line = tree if isinstance(tree, int) else getattr(tree, "lineno", "?")
        step = next_step or "import the file as torch wrote it, or catch the failure with torchrepro run"
        super().__init__(f"line {line}: {fact}", next_step=step)


@dataclass(frozen=True, slots=True)
class Size:
    """A size, stride, offset or number of bytes: its value here, and its text where it has symbols."""

    value: int
    expression: str = ""

    def __str__(self) -> str:
        return self.expression or str(self.value)


@dataclass(frozen=True, slots=True)
class StorageLine:
    """`buf0 = reader.storage('9f3…', 48)`: memory, with the name of the file that has its bytes."""

    digest: str
    """Empty where the artefact was written without data."""
    nbytes: Size
    device: str
    line: int


@dataclass(frozen=True, slots=True)
class TensorInput:
    """`reader.tensor(buf0, (3, 4), ...)`."""

    storage: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: str
    offset: Size
    requires_grad: bool
    is_leaf: bool
    line: int


@dataclass(frozen=True, slots=True)
class NumberInput:
    """`reader.symint(5, expr='s77')`, or None (`reader.const`)."""

    value: int | float | None
    expression: str = ""


@dataclass(frozen=True, slots=True)
class GeneratorInput:
    """`reader.generator('cpu', None)`."""

    device: str


Input = TensorInput | NumberInput | GeneratorInput


@dataclass(frozen=True, slots=True)
class TensorState:
    """A buffer or parameter: `self.register_buffer('b', tensor([0., 1.]))`."""

    name: str
    parameter: bool
    shape: tuple[int, ...] | None
    """None where the values are given."""
    values: Any
    dtype: str
    """Empty: what the values have."""
    device: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A graph of PyTorch's own tools, with all that its file says."""

    name: str
    """Of the file, and of the payload in it."""
    graph_text: str
    """In the form of `graph_text/`, each statement on the line that it has in the artefact."""
    state: tuple[TensorState, ...]
    modules: bool
    """Whether the graph calls modules of torch.nn."""
    storages: Mapping[str, StorageLine]
    inputs: tuple[Input, ...]
    place: Place
    backend: str = "inductor"
    symbols: Mapping[str, int] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    accuracy: bool = False
    """Whether torch was asked to compare values: then they differed."""
    autocast: bool = False
    save_dir: str = ""
    """Where torch wrote the bytes of storages, on the machine of the artefact."""
    torch: str = ""
    """The version that wrote it, where it says so."""
    notes: tuple[str, ...] = ()


def size_of(tree: ast.expr, symbols: Mapping[str, int]) -> Size:
    """Return the size that an expression over integers and symbols describes; bounded at every step."""
    value = _number(tree, symbols)
    if not 0 <= value <= LARGEST:
        raise ArtefactError(tree, f"{value} is no size that a tensor can have")
    return Size(value, "" if isinstance(tree, ast.Constant) else ast.unparse(tree))


def _number(tree: ast.expr, symbols: Mapping[str, int]) -> int:
    match tree:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.Name(id=name) if name in symbols:
            return symbols[name]
        case ast.Name(id=name):
            raise ArtefactError(
                tree,
                f"the size {name} has no value",
                f"add a line `{name} = 8` at the top of the file, with the size that it had",
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            function = _ARITHMETIC[type(op)]
            arguments = [_number(left, symbols), _number(right, symbols)]
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
            arguments = [_number(arg, symbols) for arg in args]
        case _:
            raise ArtefactError(tree, f"{shown(tree)} is no size")
    try:
        value = function(*arguments)
    except (ArithmeticError, TypeError):
        raise ArtefactError(tree, f"{shown(tree)} is no size") from None
    if abs(value) > LARGEST:
        raise ArtefactError(tree, f"{shown(tree)} is larger than a tensor can be")
    return value


def shown(tree: ast.AST) -> str:
    """Return the first characters of a piece of code, in one line, for a message."""
    text = " ".join(ast.unparse(tree).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def dtype_name(tree: ast.expr) -> str:
    """Return `float32` for the syntax tree of `torch.float32`."""
    name = dotted_name(tree) or ""
    if not _DTYPE.match(name):
        raise ArtefactError(tree, f"{shown(tree)} is no dtype")
    return name.removeprefix("torch.")


def device_name(tree: ast.expr) -> str:
    """Return `cuda:0` for the syntax tree of `device(type='cuda', index=0)`, `'cuda:0'` and their like."""
    parts: list[ast.expr] = [tree]
    if isinstance(tree, ast.Call) and dotted_name(tree.func) in ("device", "torch.device"):
        parts = [*tree.args, *(item.value for item in tree.keywords)]
    name = ":".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
    if not _DEVICE.match(name):
        raise ArtefactError(tree, f"{shown(tree)} is no device")
    return name
