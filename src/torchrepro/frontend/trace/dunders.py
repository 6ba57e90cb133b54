"""Special methods: which methods of Python classes stand behind operators, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrepro.frontend.trace.classes import MISSING

BINARY_METHODS = {
    "ADD": "add",
    "AND": "and",
    "FLOOR_DIVIDE": "floordiv",
    "LSHIFT": "lshift",
    "MATRIX_MULTIPLY": "matmul",
    "MULTIPLY": "mul",
    "REMAINDER": "mod",
    "OR": "or",
    "POWER": "pow",
    "RSHIFT": "rshift",
    "SUBTRACT": "sub",
    "TRUE_DIVIDE": "truediv",
    "XOR": "xor",
    "DIVMOD": "divmod",
}

_WRITTEN = "+ & // << @ * % | ** >> - / ^ divmod()"
SYMBOLS = dict(zip(BINARY_METHODS, _WRITTEN.split(), strict=True))
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


def unsupported(name: str, left: Any, right: Any) -> TypeError:
    """What Python says where nobody knows the operator."""
    symbol = SYMBOLS[name.removeprefix("INPLACE_")]
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
