"""Operators during a trace: special methods in Python are inlined, C does the rest."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.operations import BINARY, BINARY_METHODS, COMPARE, UNARY, Operators
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.classes import MISSING, is_python_class
from torchrepro.frontend.trace.foreign import natively

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_CONVERSIONS: Mapping[str, Callable[[object], str]] = {"str": str, "repr": repr, "ascii": ascii}

_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)

_SYMBOLS = dict(
    zip(BINARY_METHODS, ["+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"], strict=True)
)
COMPARE_SYMBOLS = {"LT": "<", "LE": "<=", "EQ": "==", "NE": "!=", "GT": ">", "GE": ">="}

COMPARE_METHODS = {
    "LT": ("__lt__", "__gt__"),
    "LE": ("__le__", "__ge__"),
    "EQ": ("__eq__", "__eq__"),
    "NE": ("__ne__", "__ne__"),
    "GT": ("__gt__", "__lt__"),
    "GE": ("__ge__", "__le__"),
}
"""Method and reflected method."""

UNARY_METHODS = {
    "UNARY_NEGATIVE": "__neg__",
    "UNARY_INVERT": "__invert__",
    "UNARY_POSITIVE": "__pos__",
}


def checked_length(length: Any) -> int:
    """What `__len__` gave, where it is one."""
    number = operator.index(length)
    if number < 0:
        raise ValueError("__len__() should return >= 0")
    return number


class TracedOperators(Operators):
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.values, self.dicts = tracer, tracer.values, tracer.dicts
        self.lookup, self.special = tracer.classes.lookup, tracer.calls.special

    def unary(self, name: str, value: Any) -> Any:
        self.values.require_known(value)
        result = self.special(value, UNARY_METHODS[name])
        return UNARY[name](value) if result is MISSING else result

    def binary(self, name: str, left: Any, right: Any) -> Any:
        self.values.require_known(left, right)
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            if is_a(left, dict | list) or is_a(right, dict | list):
                self.dicts.complete_all((left, right))
            if name == "INPLACE_ADD" and type(left) is list:
                right = self.tracer.items.iterable(right)
            return natively("an operator", BINARY[name], left, right)
        self.dicts.complete_all((left, right))
        # Sequences join and repeat only when nobody has the operator of numbers.
        joins = name.removeprefix("INPLACE_") in ("ADD", "MULTIPLY")
        for receiver, method in binary_candidates(self.lookup, name, left, right):
            argument = left if receiver is right and method.startswith("__r") else right
            result = self.special(receiver, method, argument)
            if result is MISSING:
                native = self.lookup(type(receiver), method)
                if native is MISSING or (joins and is_a(receiver, _SEQUENCES)):
                    continue
                result = natively("an operator", native, receiver, argument)
            if result is not NotImplemented:
                return result
        if joins and is_a(left, _SEQUENCES) | is_a(right, _SEQUENCES):
            operands = (
                self.tracer.items.as_index(each) if is_python_class(type(each)) else each
                for each in (left, right)
            )
            return natively("an operator", BINARY[name], *operands)
        raise unsupported(name, left, right)

    def compare(self, name: str, left: Any, right: Any) -> Any:
        self.values.require_known(left, right)
        self.dicts.complete_all((left, right))
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            return natively("a comparison", COMPARE[name], left, right)
        method, reflected = COMPARE_METHODS[name]
        asked = [(left, method, right), (right, reflected, left)]
        if type(right) is not type(left) and issubclass(type(right), type(left)):
            asked.reverse()
        for receiver, wanted, argument in asked:
            result = self.special(receiver, wanted, argument)
            if self.lookup(type(receiver), wanted) is object.__ne__:
                result = self.special(receiver, "__eq__", argument)
                if result is not MISSING and result is not NotImplemented:
                    return not self.is_true(result)
            if result is MISSING:
                native = self.lookup(type(receiver), wanted)
                if native is MISSING:
                    continue
                result = natively("a comparison", native, receiver, argument)
            if result is not NotImplemented:
                return result
        if name in ("EQ", "NE"):
            return (left is right) is (name == "EQ")
        kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
        raise TypeError(f"'{COMPARE_SYMBOLS[name]}' not supported between instances of {kinds}")

    def is_true(self, value: Any) -> bool:
        if value is True or value is False or value is None:
            return bool(value)
        if is_a(value, torch.Tensor):
            return bool(value)
        self.values.require_known(value)
        result = self.special(value, "__bool__")
        if result is MISSING:
            length = self.special(value, "__len__")
            if length is not MISSING:
                return bool(checked_length(length))
            return self.dicts.length(value) > 0 if is_a(value, dict) else bool(value)
        if type(result) is not bool:
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result

    def format(self, value: Any, conversion: str, spec: Any) -> str:
        if is_a(value, torch.Tensor):
            raise Break(BreakKind.DATA, "a tensor becomes text")
        self.values.require_known(value)
        if conversion == "ascii":
            text = self.format(value, "repr", "")
            return format(text.encode("ascii", "backslashreplace").decode(), spec)
        name = self._text_method(type(value), conversion)
        text = self.special(value, name, spec) if name == "__format__" else self.special(value, name)
        if text is not MISSING:
            if not is_a(text, str):
                told = (
                    "must return a str, not {}" if name == "__format__" else "returned non-string (type {})"
                )
                raise TypeError(f"{name} {told.format(type(text).__name__)}")
            return text if name == "__format__" else format(text, spec)
        self.dicts.complete_all((value,))
        if conversion:
            value = natively("a text", _CONVERSIONS[conversion], value)
        shown = str(natively("a text", format, value, spec))
        if " at 0x" in shown:
            raise Break(BreakKind.OUTSIDE, "a text shows where in memory an object is")
        return shown

    def _text_method(self, kind: type, conversion: str) -> str:
        """The method that makes text of an object, where those of `object` lead to another."""
        if not conversion and self.lookup(kind, "__format__") is not object.__dict__["__format__"]:
            return "__format__"
        if conversion in ("", "str") and self.lookup(kind, "__str__") is not object.__dict__["__str__"]:
            return "__str__"
        return "__repr__"


def unsupported(name: str, left: Any, right: Any) -> TypeError:
    """What Python says where nobody knows the operator."""
    symbol = _SYMBOLS[name.removeprefix("INPLACE_")]
    if name.startswith("INPLACE_"):
        symbol += "="
    elif name == "POWER":
        symbol += " or pow()"
    kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
    return TypeError(f"unsupported operand type(s) for {symbol}: {kinds}")


def binary_candidates(
    lookup: Callable[[type, str], Any], name: str, left: Any, right: Any
) -> list[tuple[Any, str]]:
    """Who is asked, in order: (object, method), the object being `left` for all but the reflected method."""
    inplace = name.startswith("INPLACE_")
    stem = BINARY_METHODS[name.removeprefix("INPLACE_")]
    asked = [(left, f"__i{stem}__")] if inplace else []
    plain, reflected = (left, f"__{stem}__"), (right, f"__r{stem}__")
    if type(right) is not type(left) and issubclass(type(right), type(left)):
        # A subclass comes first where it does it in another way.
        own = lookup(type(right), reflected[1])
        first = own is not MISSING and own is not lookup(type(left), reflected[1])
        return [*asked, reflected, plain] if first else [*asked, plain, reflected]
    if type(right) is type(left):
        return [*asked, plain]
    return [*asked, plain, reflected]
