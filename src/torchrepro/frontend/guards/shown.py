"""How sentences for users show values, types and sources. Runs no code of the user's, whatever the value."""

from __future__ import annotations

import reprlib
import types
from collections.abc import Iterable
from typing import Any

import torch

from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.source import Attribute, Cell, Local, Source

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_short.maxtuple = _short.maxfrozenset = 12


def type_name(kind: type) -> str:
    """`list`, `Block`: as `kind.__name__`, which a metaclass could answer with anything."""
    return str(type.__dict__["__name__"].__get__(kind))


def shown(value: Any) -> str:
    kind = type(value)
    if kind is torch.device:
        return str(value)
    if kind is types.CodeType:  # its own text has an address
        return f"the code of {value.co_qualname}"
    if is_constant(value):
        try:
            return _short.repr(value)
        except ValueError:  # Python writes no integers of thousands of digits
            return f"a long {type_name(kind)}"
    if kind is tuple:
        return shown_all(value)
    if kind in _FUNCTIONS:
        return f"function {value.__name__}"
    if kind is types.ModuleType:
        return f"module {value.__dict__.get('__name__')}"
    if issubclass(kind, type):
        return f"class {type_name(value)}"
    return f"a {type_name(kind)}"


def shown_all(values: Iterable[Any]) -> str:
    if type(values) in (set, frozenset):
        return f"{{{', '.join(sorted(map(shown, values)))}}}"
    return f"({', '.join(map(shown, values))})"


def shown_source(source: Source) -> str:
    match source:
        case Attribute(Cell(name), "cell_contents") | Cell(name):
            return f"closure variable {name}"
        case Local(name):
            return f"argument {name}"
    return str(source)
