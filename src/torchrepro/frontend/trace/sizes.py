"""Sizes: products of sizes in which numbers are multiplied by Python and symbols only at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def numel(sizes: Sequence[Any]) -> Any:
    """How many elements a shape has: one number, or that number times each symbolic size in order.

    Numbers first: the graph of a symbolic product then has one multiplication by a constant, or none.
    """
    constant = 1
    symbols = []
    for size in sizes:
        if isinstance(size, int):
            constant *= size
        else:
            symbols.append(size)
    if constant == 0 or not symbols:
        return constant
    product = symbols[0] if constant == 1 else constant * symbols[0]
    for symbol in symbols[1:]:
        product = product * symbol
    return product
