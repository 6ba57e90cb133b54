"""Products of sizes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.frontend.trace.sizes import numel


class Symbol:
    """Notes in which order it is multiplied."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __mul__(self, other: object) -> Symbol:
        return Symbol(f"{self.text}*{getattr(other, 'text', other)}")

    def __rmul__(self, other: object) -> Symbol:
        return Symbol(f"{other}*{self.text}")


@given(st.lists(st.integers(0, 50), max_size=6))
def test_numbers_multiply_as_torch_does(sizes):
    assert numel(sizes) == torch.Size(sizes).numel()


def test_symbols_come_last():
    assert numel([2, Symbol("s0"), 3, Symbol("s1"), 4]).text == "24*s0*s1"


def test_a_factor_of_one_is_left_out():
    symbol = Symbol("s0")
    assert numel([1, symbol, 1]) is symbol


def test_no_elements_are_none_whatever_the_symbols():
    assert numel([0, Symbol("s0")]) == 0
