"""Arguments of nodes as text and back: every value that is data and not a tensor, exactly.

Reading goes by the shape of the syntax tree alone; nothing is evaluated. What has a syntax of its own in
Python is written so (numbers, strings, tuples, slices in an index), the rest as a call of a fixed word.
"""

from __future__ import annotations

import ast
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import Node

from torchrepro.graph_text import resolver, triton_kernels
from torchrepro.graph_text.symbols import Symbols, symbolic_number_text
from torchrepro.graph_text.syntax import dotted_name, error
from torchrepro.nouns.errors import CannotSerialise, GraphTextError

_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_BUILTIN_TYPES = {t.__name__: t for t in (bool, int, float, complex, str, tuple, list, dict, bytes)}


@dataclass
class LiteralWriter:
    """Writes values; collects on the way the tensors that text cannot hold and the code that needs trust."""

    variables: Mapping[Node, str]
    keep: Callable[[Any], str]
    """Keeps a tensor or generator as data and returns its key."""
    used: list[Callable[..., Any]] = field(default_factory=list)
    """Callables that were written."""
    source: Callable[[Any], str | None] = lambda value: None
    """The name that something has in the bundle's source text; None for what is not kept there."""
    keep_kernel: Callable[[Any], str] = triton_kernels.kernel_name
    """Keeps a Triton kernel apart and returns its name."""

    def write(self, value: Any) -> str:
        if isinstance(value, Node):
            return self.variables[value]
        if value is None or value is ... or isinstance(value, bool):
            return "..." if value is ... else str(value)
        writer = _SCALARS.get(type(value))
        if writer is not None:
            return writer(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return symbolic_number_text(value)
        if isinstance(value, torch.Tensor | torch.Generator):
            return f"const({quote(self.keep(value))})"
        if isinstance(value, slice):
            return f"slice({', '.join(self.write(part) for part in (value.start, value.stop, value.step))})"
        if isinstance(value, tuple | list | dict | set | frozenset):
            return self._collection(value)
        written = self._triton(value)
        if written is not None:
            return written
        if isinstance(value, enum.Enum) or _is_bound_enum(value):
            return f"enum({quote(_class_path(type(value)))}, {quote(value.name)})"
        if isinstance(value, type):
            return self._type(value)
        if callable(value):
            return self.callable(value)
        raise _cannot(value)

    def callable(self, target: Callable[..., Any]) -> str:
        wrapped = resolver.numpy_target(target)
        if wrapped is not None:
            return f"{wrapped[0]}({quote(wrapped[1])})"
        path = resolver.path_of(target)
        name = self.source(target) if path is None else None
        if name is not None:
            return f"source.{name}"
        self.used.append(target)
        if path is None:
            return f"user({quote(resolver.trusted_path_of(target))})"
        return path.removeprefix("builtins.")

    def _triton(self, value: Any) -> str | None:
        """What only calls of the user's Triton kernels hold."""
        if isinstance(value, triton_kernels.KernelPlace):
            return f"triton_kernel({quote(self.keep_kernel(value.kernel))})"
        if isinstance(value, triton_kernels.ConstantsPlace):
            return f"triton_constants({self.write(dict(value.values))})"
        if triton_kernels.is_kernel(value):
            return f"triton_function({quote(self.keep_kernel(value))})"
        dtype = triton_kernels.dtype_name(value)
        return None if dtype is None else f"triton_dtype({quote(dtype)})"

    def _collection(self, value: Any) -> str:
        if isinstance(value, dict):
            if not _is_plain(value, dict):
                raise _cannot(value)
            return "{" + ", ".join(f"{self.write(k)}: {self.write(v)}" for k, v in value.items()) + "}"
        items = [self.write(item) for item in value]
        if isinstance(value, torch.Size):
            return f"torch.Size([{', '.join(items)}])"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}([{', '.join(sorted(items))}])"
        if _is_plain(value, tuple):
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        if _is_plain(value, list):
            return f"[{', '.join(items)}]"
        if isinstance(value, tuple) and (hasattr(value, "_fields") or hasattr(value, "n_sequence_fields")):
            return f"named_tuple({quote(_class_path(type(value)))}, {', '.join(items)})"
        raise _cannot(value)

    def _type(self, value: type) -> str:
        if _BUILTIN_TYPES.get(value.__name__) is value:
            return value.__name__
        if value is torch.Tensor:
            return "torch.Tensor"
        return self.callable(value)


def _is_plain(value: Any, type_: type) -> bool:
    """That type itself or FX's immutable version of it (which every argument becomes)."""
    return type(value) in (type_, immutable_list if type_ is list else immutable_dict)


def _is_bound_enum(value: Any) -> bool:
    """An enum of a C++ binding: no `enum.Enum`, but a class with members."""
    return isinstance(getattr(type(value), "__members__", None), Mapping) and hasattr(value, "name")


def _class_path(type_: type) -> str:
    path = resolver.torch_class_path(type_)
    if path is None:
        raise CannotSerialise(
            f"the graph holds a value of {type_.__module__}.{type_.__qualname__}, which no reader can find",
            next_step="only enums and named tuples of torch can stand in a graph",
        )
    return path


def _cannot(value: Any) -> CannotSerialise:
    return CannotSerialise(
        f"an argument of type {type(value).__module__}.{type(value).__qualname__} cannot be kept as data",
        next_step="pass its tensors and numbers separately",
    )


def quote(text: str) -> str:
    """A string literal, in double quotes where that needs no escapes."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _write_complex(value: complex) -> str:
    return f"complex({value.real!r}, {value.imag!r})"


def _write_range(value: range) -> str:
    return f"range({value.start}, {value.stop}, {value.step})"


_SCALARS: dict[type, Callable[[Any], str]] = {
    int: repr,
    float: repr,
    str: quote,
    bytes: repr,
    complex: _write_complex,
    range: _write_range,
    torch.device: lambda device: f'torch.device("{device}")',
    **dict.fromkeys(_TORCH_VALUES, str),
}


_WRONG_ARGUMENTS = (
    TypeError,
    ValueError,
    RuntimeError,
    KeyError,
    AttributeError,
    ArithmeticError,
    AssertionError,
)


class LiteralReader:
    """Reads what `LiteralWriter` writes, from a syntax tree; any other tree is an error with its line."""

    def __init__(
        self,
        constants: Mapping[str, Any],
        trusted: Sequence[str],
        symbols: Symbols,
        source: ModuleType | None = None,
        kernels: Mapping[str, Any] | None = None,
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self._constants = constants
        self._trusted = trusted
        self._symbols = symbols
        self._source = source
        self._kernels = kernels or {}

    def read(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=value) if type(value) in (int, float, str, bytes, bool) or value in (
                None,
                ...,
            ):
                return value
            case ast.Name(id=name):
                return self._name(name, tree)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._negative(operand)
            case ast.Tuple(elts=items):
                return tuple(self.read(item) for item in items)
            case ast.List(elts=items):
                return [self.read(item) for item in items]
            case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
                return {
                    self.read(k): self.read(v) for k, v in zip(keys, values, strict=True) if k is not None
                }
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.read(part) for part in (lower, upper, step)))
            case ast.Attribute():
                return self._attribute(tree)
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._call(tree, dotted_name(function), args, keywords)
        raise error(
            tree, f"{ast.unparse(tree)} is no value", "write a number, a string, a name or a collection"
        )

    def _attribute(self, tree: ast.expr) -> Any:
        """A dotted path: a dtype and its like, or a callable."""
        path = dotted_name(tree)
        if path is None:
            raise error(tree, f"{ast.unparse(tree)} is no value", "only names can have attributes here")
        owner, _, name = path.rpartition(".")
        value = getattr(torch, name, None) if owner == "torch" else None
        if isinstance(value, _TORCH_VALUES) or value is torch.Tensor:
            return value
        return self.resolve(path, tree)

    def resolve(self, path: str, tree: ast.AST) -> Any:
        if path.startswith("source."):
            return self._from_source(path.removeprefix("source."), tree)
        try:
            return resolver.resolve(path, self._trusted)
        except GraphTextError as failure:
            raise at_line(tree, failure) from None

    def _from_source(self, name: str, tree: ast.AST) -> Any:
        if self._source is None:
            raise error(tree, f"source.{name} is code of the user", "read source.py, then --trust source")
        if name not in vars(self._source):
            raise error(tree, f"source.py does not define {name}", "the bundle is damaged: take it again")
        return vars(self._source)[name]

    def named_callable(self, word: str, name: str, tree: ast.AST) -> Any:
        """The callable that `user("module:function")` or a word for NumPy stands for."""
        try:
            if word == "user":
                return resolver.resolve_trusted(name, self._trusted)
            return resolver.build_numpy_target(word, name)
        except GraphTextError as failure:
            raise at_line(tree, failure) from None

    def _name(self, name: str, tree: ast.expr) -> Any:
        if name in self.nodes:
            return self.nodes[name]
        if name in ("inf", "nan"):
            return math.inf if name == "inf" else math.nan
        if name in _BUILTIN_TYPES:
            return _BUILTIN_TYPES[name]
        if resolver.is_builtin(name):
            return self.resolve(f"builtins.{name}", tree)
        raise error(tree, f"the name {name} is not defined above", "a node can only use nodes before it")

    def _negative(self, operand: ast.expr) -> Any:
        match operand:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return -number
            case ast.Name(id="inf"):
                return -math.inf
        raise error(operand, "only a number can have a sign here", "use operator.neg(...) as a node")

    def _call(
        self, tree: ast.Call, word: str | None, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> Any:
        match word, args:
            case "user", [ast.Constant(value=str(path))] if not keywords:
                return self.named_callable("user", path, tree)
        if word in ("sym", "symfloat", "symbool") and len(args) == 1:
            hints = {keyword.arg: self.read(keyword.value) for keyword in keywords if keyword.arg}
            try:
                return self._symbols.number(word, args[0], hints)
            except _WRONG_ARGUMENTS as failure:
                raise error(tree, f"{ast.unparse(tree)} is no size: {failure}") from None
        build = _BUILDERS.get(word or "")
        if build is None or keywords:
            raise error(
                tree,
                f"{ast.unparse(tree.func)}(...) is no value",
                "a call is a node: give it a line of its own",
            )
        values = [self.read(arg) for arg in args]
        if word == "const":
            return self._constant(tree, values)
        if word in ("triton_kernel", "triton_function"):
            values.append(self._kernels)
        try:
            return build(*values)
        except GraphTextError as failure:
            raise at_line(tree, failure) from None
        except _WRONG_ARGUMENTS as failure:
            raise error(tree, f"{word}(...) does not take these arguments: {failure}") from None

    def _constant(self, tree: ast.expr, values: list[Any]) -> Any:
        if len(values) != 1 or values[0] not in self._constants:
            raise error(
                tree, f"the bundle has no constant {values!r}", "the bundle is incomplete: take it again"
            )
        return self._constants[values[0]]


def _named_tuple(path: str, *items: Any) -> Any:
    type_ = resolver.torch_class(path)
    if type_ is None or not issubclass(type_, tuple):
        raise TypeError(f"{path} is no named tuple of torch")
    return type_(*items) if hasattr(type_, "_fields") else type_(items)


def _enum_member(path: str, name: str) -> Any:
    type_ = resolver.torch_class(path)
    members = getattr(type_, "__members__", None)
    if not isinstance(members, Mapping):
        raise TypeError(f"{path} is no enum of torch")
    return members[name]


_BUILDERS: dict[str, Callable[..., Any]] = {
    "slice": slice,
    "range": range,
    "complex": complex,
    "set": set,
    "frozenset": frozenset,
    "torch.Size": torch.Size,
    "torch.device": torch.device,
    "named_tuple": _named_tuple,
    "enum": _enum_member,
    "const": lambda key: key,
    "triton_kernel": triton_kernels.place_of_kernel,
    "triton_function": triton_kernels.kernel_named,
    "triton_constants": triton_kernels.place_of_constants,
    "triton_dtype": triton_kernels.dtype_named,
}


def at_line(tree: ast.AST, failure: GraphTextError) -> GraphTextError:
    return error(tree, failure.fact, failure.next_step)
