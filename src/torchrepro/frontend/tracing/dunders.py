"""Special methods: which methods of Python classes stand behind operators, and in which order."""

from __future__ import annotations

from typing import Any

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
}

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


def binary_candidates(name: str, left: Any, right: Any) -> list[tuple[Any, str]]:
    """Who is asked, in order: (object, method), the object being `left` for all but the reflected method."""
    inplace = name.startswith("INPLACE_")
    stem = BINARY_METHODS[name.removeprefix("INPLACE_")]
    asked = [(left, f"__i{stem}__")] if inplace else []
    plain, reflected = (left, f"__{stem}__"), (right, f"__r{stem}__")
    if type(right) is not type(left) and issubclass(type(right), type(left)):
        return [*asked, reflected, plain]
    if type(right) is type(left):
        return [*asked, plain]
    return [*asked, plain, reflected]
