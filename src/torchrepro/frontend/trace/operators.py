"""Operators during a trace: special methods in Python are inlined, C does the rest."""

from __future__ import annotations

import builtins
import collections
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.operations import (
    BINARY,
    BINARY_METHODS,
    BINARY_SYMBOLS,
    COMPARE,
    UNARY,
    Operators,
)
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.arrays import TracedArray
from torchrepro.frontend.trace.classes import MISSING, is_python_class
from torchrepro.frontend.trace.foreign import natively

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)

_COMPARISONS = {
    "LT": ("lt", "gt", "<"),
    "LE": ("le", "ge", "<="),
    "EQ": ("eq", "eq", "=="),
    "NE": ("ne", "ne", "!="),
    "GT": ("gt", "lt", ">"),
    "GE": ("ge", "le", ">="),
}
"""Method, reflected method and symbol."""


def checked_length(length: Any) -> int:
    """Return the result of `__len__` as an integer; raise where it is not a length."""
    number = index(length)
    if number < 0:
        raise ValueError("__len__() should return >= 0")
    return number


class TracedOperators(Operators):
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.values, self.dicts = tracer, tracer.values, tracer.dicts
        self.lookup, self.special = tracer.classes.lookup, tracer.calls.special

    def unary(self, name: str, value: Any) -> Any:
        self.values.require_known(value)
        result = self.special(value, f"__{UNARY[name].__name__}__")
        return UNARY[name](value) if result is MISSING else result

    def binary(self, name: str, left: Any, right: Any) -> Any:
        self.values.require_known(left, right)
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            for each, method, _ in self._candidates(name, left, right):
                self.tracer.classes.python_method(each, method)  # guards those of tensors
            if is_a(left, dict | list) or is_a(right, dict | list):
                self.dicts.complete_all((left, right))
            if name == "INPLACE_ADD" and type(left) is list:
                right = self.tracer.items.iterable(right)
            return natively("an operator", BINARY[name], left, right)
        self.dicts.complete_all((left, right))
        # Sequences are joined or repeated only when neither operand has the operator of numbers.
        joined = _SEQUENCES if name.removeprefix("INPLACE_") in ("ADD", "MULTIPLY") else ()
        result = self._first_answer("an operator", self._candidates(name, left, right), joined)
        if result is not NotImplemented:
            return result
        if is_a(left, joined) or is_a(right, joined):
            operands = (
                self.tracer.items.as_index(each) if is_python_class(type(each)) else each
                for each in (left, right)
            )
            return natively("an operator", BINARY[name], *operands)
        symbol = BINARY_SYMBOLS[name.removeprefix("INPLACE_")]
        symbol += "=" if name.startswith("INPLACE_") else " or pow()" if name == "POWER" else ""
        raise TypeError(f"unsupported operand type(s) for {symbol}: {_kinds(left, right)}")

    def _candidates(self, name: str, left: Any, right: Any) -> list[tuple[Any, str, Any]]:
        """Return what is called, in order: an object, its method, the argument."""
        stem = BINARY_METHODS[name.removeprefix("INPLACE_")]
        asked = [(left, f"__i{stem}__", right)] if name.startswith("INPLACE_") else []
        plain, reflected = (left, f"__{stem}__", right), (right, f"__r{stem}__", left)
        if type(right) is type(left):
            return [*asked, plain]
        if issubclass(type(right), type(left)):
            # A subclass comes first where it overrides the method.
            own = self.lookup(type(right), reflected[1])
            if own is not MISSING and own is not self.lookup(type(left), reflected[1]):
                return [*asked, reflected, plain]
        return [*asked, plain, reflected]

    def _first_answer(self, what: str, asked: Iterable[tuple[Any, str, Any]], skipped: Any = ()) -> Any:
        """Return the first result that is not `NotImplemented`; `NotImplemented` if there is none.

        `skipped`: classes whose methods in C are not called.
        """
        for receiver, method, argument in asked:
            result = self.special(receiver, method, argument)
            if result is MISSING:
                native = self.lookup(type(receiver), method)
                if native is MISSING or is_a(receiver, skipped):
                    continue
                if native is object.__ne__:
                    result = self.special(receiver, "__eq__", argument)
                    if result is not MISSING and result is not NotImplemented:
                        return not self.is_true(result)
                if result is MISSING:
                    result = natively(what, native, receiver, argument)
            if result is not NotImplemented:
                return result
        return NotImplemented

    def compare(self, name: str, left: Any, right: Any) -> Any:
        self.values.require_known(left, right)
        self.dicts.complete_all((left, right))
        if is_a(right, TracedArray) and is_a(left, np.dtype):  # it would take the array for its dtype
            return self.compare(_COMPARISONS[name][1].upper(), right, left)
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            return natively("a comparison", COMPARE[name], left, right)
        method, reflected, symbol = _COMPARISONS[name]
        asked = [(left, f"__{method}__", right), (right, f"__{reflected}__", left)]
        if type(right) is not type(left) and issubclass(type(right), type(left)):
            asked.reverse()
        result = self._first_answer("a comparison", asked)
        if result is not NotImplemented:
            return result
        if name in ("EQ", "NE"):
            return (left is right) is (name == "EQ")
        raise TypeError(f"'{symbol}' not supported between instances of {_kinds(left, right)}")

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
        text = self.special(value, name, *((spec,) if name == "__format__" else ()))
        if text is not MISSING:
            if not is_a(text, str):
                kind = type(text).__name__
                told = (
                    f"must return a str, not {kind}"
                    if name == "__format__"
                    else f"returned non-string (type {kind})"
                )
                raise TypeError(f"{name} {told}")
            return text if name == "__format__" else format(text, spec)
        self.dicts.complete_all((value,))
        if conversion:
            value = natively("a text", getattr(builtins, conversion), value)
        shown = str(natively("a text", format, value, spec))
        if " at 0x" in shown:
            raise Break(BreakKind.OUTSIDE, "a text shows where in memory an object is")
        return shown

    def _text_method(self, kind: type, conversion: str) -> str:
        """Return the method that formats an object; those of `object` forward to another."""
        if not conversion and self.lookup(kind, "__format__") is not object.__dict__["__format__"]:
            return "__format__"
        if conversion in ("", "str") and self.lookup(kind, "__str__") is not object.__dict__["__str__"]:
            return "__str__"
        return "__repr__"


def _kinds(left: Any, right: Any) -> str:
    return f"'{type(left).__name__}' and '{type(right).__name__}'"
