"""Small leaves judged in batches get the verdict and the statistics of the complete rule."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_leaves import DTYPES, leaves

from torchrepro.judge.batch import SmallLeaf, accepted
from torchrepro.judge.compare import same
from torchrepro.judge.rule import Rule
from torchrepro.judge.tensors import compare_tensors, judge_alone
from torchrepro.nouns.verdict import Difference, LeafComparison

rules = st.sampled_from(
    (Rule(), Rule(), Rule(tol=1e-4), Rule(tol=0.0), Rule(equal_nan=False), Rule(blind_dtype=torch.bfloat16))
)


@settings(deadline=None, max_examples=300)
@given(st.lists(leaves(), min_size=1, max_size=4), rules, st.booleans())
def test_an_accepted_leaf_is_what_the_rule_says(
    drawn: list[tuple[torch.Tensor, ...]], rule: Rule, blind: bool
) -> None:
    waiting = [_waiting(ref, res, None if blind else truth, rule) for ref, res, truth in drawn]
    for leaf, found in zip(waiting, accepted(waiting, rule), strict=True):
        if found is not None:
            assert dataclasses.asdict(found) == _rounded(judge_alone(leaf, rule))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blind", [False, True])
def test_healthy_leaves_are_accepted(dtype: torch.dtype, blind: bool) -> None:
    shapes = [(7,), (32, 32), (1024,), (), (3, 5), (130, 130), (33,)]
    truths = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    noisy = [truth * (1 + torch.finfo(dtype).eps / 4 * torch.randn(truth.shape)) for truth in truths]
    waiting = [
        _waiting(truth.to(dtype), other.to(dtype), None if blind else truth, Rule())
        for truth, other in zip(truths, noisy, strict=True)
    ]
    for leaf, found in zip(waiting, accepted(waiting, Rule()), strict=True):
        assert found is not None
        assert dataclasses.asdict(found) == _rounded(judge_alone(leaf, Rule()))


def test_the_smaller_elements_excuse_noise_as_in_the_rule() -> None:
    truth = torch.linspace(0.5, 1.5, 1000, dtype=torch.float64)
    truth[:10] = 1e-9
    ref, granted, beyond = (truth.float().clone() for _ in range(3))
    granted[3] += 300 * torch.finfo(torch.float32).eps * 0.6  # below 8 * 64 ulp of the smaller elements
    beyond[3] += 1e-3
    waiting = [_waiting(ref, res, truth, Rule()) for res in (granted, beyond)]
    found = accepted(waiting, Rule())
    assert [each is not None for each in found] == [True, False]
    assert [judge_alone(leaf, Rule()).same for leaf in waiting] == [True, False]


def test_a_wrong_leaf_among_many_is_the_one_that_differs() -> None:
    ref: list[Any] = [torch.randn(size) for size in (4, 9, 100, 2000)] + [
        torch.arange(5),
        torch.tensor(True),
        0.5,
    ]
    res = [value.clone() if isinstance(value, torch.Tensor) else value for value in ref]
    assert same(ref, res)
    res[2][17] += 1.0
    res[4][3] += 1
    found = same(ref, res)
    assert [leaf.path for leaf in found] == [f"[{number}]" for number in range(7)]
    assert [leaf.path for leaf in found.differing] == ["[2]", "[4]"]
    assert found.leaves[2].index == (17,)
    assert found.leaves[4].difference is Difference.VALUE


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left_to_the_rule(value: float) -> None:
    ref = torch.tensor([1.0, value, 3.0])
    assert accepted([_waiting(ref, ref.clone(), None, Rule())], Rule()) == [None]
    assert same(ref, ref.clone())
    assert not same(ref, torch.tensor([1.0, 2.0, 3.0]))


def test_strict_compares_bits() -> None:
    zeros = torch.zeros(3)
    assert same(zeros, zeros.clone(), strict=True)
    assert not same(zeros, -zeros, strict=True)


def test_lazily_negated_and_transposed_leaves_are_read_as_they_are() -> None:
    negated = torch.randn(4, 6, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    assert same([negated, negated.t()], [negated.clone().resolve_neg(), negated.t().contiguous()])
    assert not same(negated, -negated)


def test_the_default_device_does_not_matter() -> None:
    ref = torch.randn(100)
    with torch.device("meta"):
        assert same([ref, 1.0], [ref.clone(), 1.0], [ref.double(), 1.0])
        assert not same([ref, 1.0], [ref + 1.0, 1.0], [ref.double(), 1.0])


def _waiting(ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, rule: Rule) -> SmallLeaf:
    (leaf,), _ = compare_tensors(ref, res, truth, "x", rule)
    assert isinstance(leaf, SmallLeaf)
    return leaf


def _rounded(leaf: LeafComparison) -> dict[str, Any]:
    """Return the fields, with a relative slack for sums that were taken in another order."""
    fields = dataclasses.asdict(leaf)
    return {
        name: pytest.approx(value, rel=1e-9, abs=1e-300) if isinstance(value, float) else value
        for name, value in fields.items()
    }


def test_a_difference_from_zero_gives_no_warning() -> None:
    truth = torch.zeros(4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (leaf,) = same(truth, truth + 1e-14).leaves
    assert leaf.same
    assert leaf.max_ulp == math.inf
