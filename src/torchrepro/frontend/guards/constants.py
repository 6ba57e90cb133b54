"""Constants: when one value may replace another, and how messages show values.

Python's `==` is too weak: `1 == True`, `0.0 == -0.0`. Nothing here runs code of the user's.
"""

from __future__ import annotations

import enum
import reprlib
import types
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from torchrepro.frontend.source import Attribute, Cell, Local, Memory, Source

ONE_OF_A_KIND = frozenset(
    {
        *(type(None), bool, type(...), type(NotImplemented), types.CodeType),
        *(torch.dtype, torch.layout, torch.memory_format, torch.qscheme),
    }
)
"""Equal ones are the same object. (Code objects with equal contents may still belong to different files.)"""

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_short.maxtuple = _short.maxfrozenset = 12
_BY_VALUE = frozenset({int, str, bytes, torch.device})


def by_identity(value: Any) -> bool:
    """Return whether `is` is the right comparison, by the type: `isinstance` may run code of the user's."""
    return type(value) in ONE_OF_A_KIND or issubclass(type(value), enum.Enum)


def token(value: Any) -> Hashable:
    """Return a key, equal for two constants if and only if no program can tell them apart (but by `is`).

    Raises `TypeError` for what is no constant. All NaNs are equal.
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if by_identity(value):
        return kind, id(value)
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple or kind is torch.Size:
        return kind, *map(token, value)
    if kind is frozenset:
        return kind, len(value), frozenset(map(token, value))
    if kind is slice or kind is range:
        return kind, token(value.start), token(value.stop), token(value.step)
    raise TypeError(f"{kind.__name__} is no kind of constant")


def is_constant(value: Any) -> bool:
    try:
        token(value)
    except TypeError:
        return False
    return True


def token_or_identity(value: Any) -> Hashable:
    """Return a key for a member of a set or a key of a dict, which may be an object: then by identity."""
    return token(value) if is_constant(value) else ("object", id(value))


def same(found: Any, expected: Any) -> bool:
    """Return whether two constants are the same; generated code calls it where no operator compares them."""
    return found is expected or (type(found) is type(expected) and token(found) == token(expected))


def same_keys(found: Any, expected: tuple[Any, ...]) -> bool:
    """Return whether a dict has these keys, in this order, of these types."""
    keys = tuple(found)
    # Types first: what follows then runs no `__eq__` of the user's.
    return len(keys) == len(expected) and all(map(same, keys, expected))


def same_members(found: Any, expected: frozenset[Any]) -> bool:
    """Return whether a set has these members, of these types; objects count by identity."""
    if type(found) not in (set, frozenset) or len(found) != len(expected):
        return False
    return set(map(token_or_identity, found)) == set(map(token_or_identity, expected))


def type_name(kind: type) -> str:
    """Return `list`, `Block`: `kind.__name__`, bypassing a metaclass that overrides it."""
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
        case Attribute(of, "__dict__") | Memory(of):
            return shown_source(of)
    return str(source)
