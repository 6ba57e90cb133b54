"""Arguments of nodes as text and back: every value that is data and not a tensor, exactly.

Reading goes by the shape of the syntax tree alone; nothing is evaluated. What has a syntax of its own in
Python is written so (numbers, strings, tuples, slices in an index), the rest as a call of a fixed word.
"""

from __future__ import annotations

import ast
import enum
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import Node

from torchrepro.graph_text import resolver, triton_kernels
from torchrepro.graph_text.allowed import MODULES
from torchrepro.graph_text.annotations import SYMBOL_KINDS
from torchrepro.graph_text.symbols import Symbols, symbolic_number_text
from torchrepro.graph_text.syntax import NUMPY_WORDS, dotted_name
from torchrepro.nouns.errors import CannotSerialise, GraphTextError, class_path
from torchrepro.torch_api.distributed import PLACEMENTS, is_mesh_or_group, make_placement, placement_parts
from torchrepro.torch_api.names import NUMPY_ATTRIBUTE

_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_CONSTANTS = (int, float, str, bytes, bool)
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_DAMAGED = "the bundle is damaged: take it again"
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
        if type(value) in (int, float, bytes, bool, type(None)):
            return repr(value)
        if type(value) is str:
            return quote(value)
        if value is ... or isinstance(value, _TORCH_VALUES):
            return "..." if value is ... else str(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return symbolic_number_text(value)
        items = self._items(value)
        match value:
            case dict() if items is not None:
                return "{" + ", ".join(map(": ".join, zip(items[::2], items[1::2], strict=True))) + "}"
            case tuple() if items is not None:
                return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
            case list() if items is not None:
                return f"[{', '.join(items)}]"
        for word, (holds, parts, _) in _WORDS.items():
            if holds(value):
                return f"{word}({', '.join(map(self.write, parts(value, self)))})"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}([{', '.join(sorted(map(self.write, value)))}])"
        if isinstance(value, type) and value in (torch.Tensor, *_BUILTIN_TYPES.values()):
            return "torch.Tensor" if value is torch.Tensor else value.__name__
        if callable(value):
            return self.callable(value)
        raise CannotSerialise(
            f"an argument of type {class_path(type(value))} cannot be kept as data",
            next_step="pass its tensors and numbers separately",
        )

    def _items(self, value: Any) -> list[str] | None:
        """Write the items of a tuple, list or dict, or FX's immutable version of it; None for all else."""
        if type(value) in (dict, immutable_dict):
            return [self.write(part) for pair in value.items() for part in pair]
        return [*map(self.write, value)] if type(value) in (tuple, list, immutable_list) else None

    def callable(self, target: Callable[..., Any]) -> str:
        wrapped = resolver.numpy_target(target)
        if wrapped is not None:
            return f"{wrapped[0]}({quote(wrapped[1])})"
        path = resolver.path_of(target)
        name = self.source(target) if path is None else None
        if name is not None:
            return f"source.{name}"
        text = f"user({quote(resolver.trusted_path_of(target))})" if path is None else path
        self.used.append(target)
        return text.removeprefix("builtins.")


def quote(text: str) -> str:
    """Return a string literal, in double quotes where that needs no escapes."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _class_path(type_: type) -> str:
    path = resolver.torch_class_path(type_)
    if path is None:
        raise CannotSerialise(
            f"the graph holds a value of {class_path(type_)}, which no reader can find",
            next_step="only enums and named tuples of torch can stand in a graph",
        )
    return path


def _is_enum(value: Any) -> bool:
    """Return whether a value is a member of an enum; one of a C++ binding is no `enum.Enum`."""
    members = getattr(type(value), "__members__", None)
    return isinstance(value, enum.Enum) or (isinstance(members, Mapping) and hasattr(value, "name"))


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and (hasattr(value, "_fields") or hasattr(value, "n_sequence_fields"))


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


def _instance_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_kept(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.Generator) or is_mesh_or_group(value)


def _placement(path: str) -> tuple[Any, Any, Any]:
    return (
        lambda value: (placement_parts(value) or ("",))[0] == path,
        lambda value, to: (placement_parts(value) or ("", ()))[1],
        lambda *fields: make_placement(path, *fields),
    )


_WORDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, LiteralWriter], Any], Callable[..., Any]]] = {
    "const": (_is_kept, lambda value, to: [to.keep(value)], str),
    "slice": (_instance_of(slice), lambda value, to: (value.start, value.stop, value.step), slice),
    "range": (_instance_of(range), lambda value, to: (value.start, value.stop, value.step), range),
    "complex": (lambda value: type(value) is complex, lambda value, to: (value.real, value.imag), complex),
    "torch.device": (_instance_of(torch.device), lambda value, to: [str(value)], torch.device),
    "torch.Size": (_instance_of(torch.Size), lambda value, to: [[*value]], torch.Size),
    "named_tuple": (_is_named_tuple, lambda value, to: (_class_path(type(value)), *value), _named_tuple),
    "triton_kernel": (
        _instance_of(triton_kernels.KernelPlace),
        lambda value, to: [to.keep_kernel(value.kernel)],
        triton_kernels.place_of_kernel,
    ),
    "triton_constants": (
        _instance_of(triton_kernels.ConstantsPlace),
        lambda value, to: [dict(value.values)],
        triton_kernels.place_of_constants,
    ),
    "triton_function": (
        triton_kernels.is_kernel,
        lambda value, to: [to.keep_kernel(value)],
        triton_kernels.kernel_named,
    ),
    "triton_dtype": (
        triton_kernels.is_dtype,
        lambda value, to: [str(value.name)],
        triton_kernels.dtype_named,
    ),
    **{path: _placement(path) for path in PLACEMENTS},
    "enum": (_is_enum, lambda value, to: (_class_path(type(value)), value.name), _enum_member),
}
"""What is written as the call of a word: which values, the arguments, and what reads them back."""
_BUILDERS = {word: build for word, (_, _, build) in _WORDS.items()} | {"set": set, "frozenset": frozenset}
# A node with one of these names is written by another one: the names have a meaning of their own in the text.
RESERVED = frozenset(
    {
        *("torch", "operator", "math", "builtins", "self", "inf", "nan", "named", "arg", "user"),
        *("source", "sym", "symfloat", "symbool", "call_method", "call_module", "get_attr", "node"),
        *("call", "bytes", "getattr", "parameter", "buffer", "temporary_buffer", "at", "same_as"),
        *NUMPY_WORDS,
        *_BUILDERS,
        *MODULES["builtins"],  # type: ignore[misc]
    }
)
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9 _.,:;=<>()+*/!#@%^&|~-]|\*(?=/)")
_LONGEST_TEXT = 2000
_WRONG_ARGUMENTS = (
    *(TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError),
    AssertionError,  # torch's functions of sympy, for a negative divisor
)


def _only_string(tree: ast.Call) -> str:
    match tree.args:
        case [ast.Constant(value=str(text))]:
            return text
    raise TypeError("it takes one string")


def is_placeholder_target(target: str) -> bool:
    return bool(resolver.IDENTIFIER.match(target.lstrip("*"))) and target.count("*") <= 2


def plain_text(text: str) -> str:
    """Return a text without characters that could end a string or a comment in generated code.

    Inductor writes some strings of a graph (messages of assertions) into C++ unescaped. What has a meaning
    to an operator (`"floor"`, `"tanh"`, `"bij,bjk->bik"`) has none of these characters.
    """
    return _NOT_PLAIN.sub("_", text[:_LONGEST_TEXT])


@dataclass
class LiteralReader:
    """Reads what `LiteralWriter` writes, from a syntax tree; any other tree is an error with its line."""

    constants: Mapping[str, Any]
    trusted: Collection[str]
    symbols: Callable[[], Symbols]
    source: ModuleType | None
    kernels: Mapping[str, Any]
    stranger: bool
    nodes: dict[str, Node] = field(default_factory=dict)
    """The nodes above, by the names of their variables."""

    def read(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=str(value)) if self.stranger:
                return plain_text(value)
            case ast.Constant(value=value) if value in (None, ...) or type(value) in _CONSTANTS:
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() | ast.Name(id="inf") as operand):
                number = self.read(operand)
                if type(number) in (int, float):
                    return -number
            case ast.Tuple(elts=items):
                return tuple(self.read(item) for item in items)
            case ast.List(elts=items):
                return [self.read(item) for item in items]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self.read(key): self.read(item) for key, item in zip(keys, values, strict=True) if key
                }
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.read(part) for part in (lower, upper, step)))
            case ast.Attribute():
                return self._attribute(dotted_name(tree) or "")
            case ast.Call(func=ast.Name(id="user"), args=[ast.Constant(value=str(path))], keywords=[]):
                return self.named_callable("user", path)
            case ast.Call():
                return self._call(tree, dotted_name(tree.func) or "")
        raise GraphTextError(
            f"{ast.unparse(tree)} is no value", next_step="write a number, a string, a name or a collection"
        )

    def _attribute(self, path: str) -> Any:
        """Return the value of a dotted path: a dtype and its like, or a callable."""
        owner, _, name = path.rpartition(".")
        value = getattr(torch, name, None) if owner == "torch" else None
        if isinstance(value, _TORCH_VALUES) or value is torch.Tensor:
            return value
        if path == NUMPY_ATTRIBUTE:  # what calls it would choose the attribute, which the parser checks
            raise GraphTextError(f"{path} is no value", next_step="call it with the name of an attribute")
        return self.resolve(path)

    def resolve(self, path: str) -> Any:
        """Return the callable at a dotted path."""
        owner, _, name = path.partition(".")
        if owner != "source":
            return resolver.resolve(path, self.trusted, stranger=self.stranger)
        if self.source is None:
            fact = f"{path} is code of the user"
            raise GraphTextError(fact, next_step="read source.py, then --trust source")
        if name not in vars(self.source):
            raise GraphTextError(f"source.py does not define {name}", next_step=_DAMAGED)
        return vars(self.source)[name]

    def named_callable(self, word: str, name: str) -> Any:
        """Return the callable that `user("module:function")` or a word for NumPy stands for."""
        if word == "user":
            return resolver.resolve_trusted(name, self.trusted)
        return resolver.build_numpy_target(word, name)

    def _name(self, name: str) -> Any:
        for known in (self.nodes, _NUMBERS, _BUILTIN_TYPES):
            if name in known:
                return known[name]
        if name in MODULES["builtins"]:  # type: ignore[operator]
            return self.resolve(f"builtins.{name}")
        raise GraphTextError(
            f"the name {name} is not defined above", next_step="a node can only use nodes before it"
        )

    def _call(self, tree: ast.Call, word: str) -> Any:
        symbolic, build = word in SYMBOL_KINDS and len(tree.args) == 1, _BUILDERS.get(word)
        if not symbolic and (build is None or tree.keywords):
            fact = f"{ast.unparse(tree.func)}(...) is no value"
            raise GraphTextError(fact, next_step="a call is a node: give it a line of its own")
        try:
            if symbolic:
                hints = {item.arg: self.read(item.value) for item in tree.keywords if item.arg}
                return self.symbols().number(word, tree.args[0], hints)
            if word == "const":
                return self.constants[_only_string(tree)]
            values = [self.read(arg) for arg in tree.args]
            if word in ("triton_kernel", "triton_function"):
                values.append(self.kernels)
            assert build is not None
            return build(*values)
        except _WRONG_ARGUMENTS as failure:
            fact = f"{ast.unparse(tree)} does not take these arguments: {failure}"
            raise GraphTextError(fact, next_step=_DAMAGED) from None
