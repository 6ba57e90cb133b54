"""Tolerances: between the rounding of a healthy compiler and the error that was seen."""

from __future__ import annotations

import pytest
import torch

from torchrepro.nouns.verdict import Difference, LeafComparison
from torchrepro.script.assertions import Compared, assertion, tolerances
from torchrepro.script.document import docstring


def _leaf(eager: str, compiled: str, elements: int = 4, **more: float) -> LeafComparison:
    return LeafComparison(
        "out", Difference.VALUE, ref_value=eager, res_value=compiled, elements=elements, **more
    )


def test_a_plain_error_needs_no_tolerance() -> None:
    assert tolerances(Compared(_leaf("21", "0"), torch.uint8)) is None
    assert tolerances(Compared(_leaf("1.0", "2.0"), torch.float32)) is None
    assert tolerances(Compared(_leaf("inf", "1.0"), torch.float32)) is None


@pytest.mark.parametrize(
    ("eager", "compiled"), [("1.0", "1.000002"), ("1000.0", "1000.002"), ("0.0", "1e-7")]
)
def test_an_error_below_the_usual_tolerance_gets_one_of_its_own(eager: str, compiled: str) -> None:
    chosen = tolerances(Compared(_leaf(eager, compiled), torch.float32))
    assert chosen is not None
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            torch.tensor(float(compiled)), torch.tensor(float(eager)), rtol=chosen[0], atol=chosen[1]
        )


def test_a_sentence_that_was_cut_says_so() -> None:
    assert " ".join(docstring("It raises " + "a long word and " * 40, ())).rstrip().endswith(" ...")
    assert docstring("It raises.", ["a fact"]) == ["It raises.", "", "a fact"]


def test_eagers_own_noise_is_granted() -> None:
    chosen = tolerances(Compared(_leaf("100.0", "101.0", rmse_ref=1e-3), torch.float32))
    assert chosen is not None
    assert 0.008 < chosen[0] * 100 + chosen[1] < 1.0


def test_bits_are_compared_where_bits_were_judged() -> None:
    compared = Compared(_leaf("1.0", "1.0"), torch.float32, strict=True)
    assert assertion(compared, "a", "b") == "torch.testing.assert_close(a, b, rtol=0, atol=0)"


def test_a_tolerance_that_was_asked_for_is_the_one() -> None:
    compared = Compared(_leaf("1.0", "2.0"), torch.float32, tolerance=0.01)
    assert assertion(compared, "a", "b") == "torch.testing.assert_close(a, b, rtol=0.01, atol=0.01)"


def test_other_differences_are_asked_for() -> None:
    stride = LeafComparison("out", Difference.STRIDE, detail="(1, 2) in eager, (2, 1) compiled")
    assert "check_stride=True" in assertion(Compared(stride, torch.float32), "a", "b")
    kind = LeafComparison("out", Difference.TYPE, detail="Tensor in eager, None compiled")
    assert assertion(Compared(kind), "a", "b") == "assert type(a) is type(b)"


def test_float8_is_compared_in_float32() -> None:
    compared = Compared(_leaf("1.0", "2.0"), torch.float8_e4m3fn)
    assert assertion(compared, "a", "b") == "torch.testing.assert_close(a.float(), b.float())"
