"""Large leaves accepted after one quick pass get the verdict of the complete rule."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_leaves import DTYPES, leaves

from torchrepro.judge import glance
from torchrepro.judge.batch import SmallLeaf
from torchrepro.judge.compare import same
from torchrepro.judge.rule import Rule, precision_of
from torchrepro.judge.tensors import judge_alone


@pytest.fixture(params=["torch", "kernel"])
def lowered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Count leaves of any size as large, and let torch do what the kernel does on a GPU."""
    monkeypatch.setattr(glance, "SMALL", 0)
    monkeypatch.setattr(glance, "_BLOCK", 300)
    if request.param == "kernel":
        monkeypatch.setattr(glance, "errors_of", _errors)
    return str(request.param)


def _errors(ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, relative: float) -> torch.Tensor:
    old, new, exact = ref.double(), res.double(), truth.double()
    eager, compiled, allowed = old - exact, new - exact, exact.abs() * relative
    sums = [values.dot(values) for values in (exact, eager, compiled)]
    tops = [(eager.abs() - allowed).amax(), (compiled.abs() - allowed).amax(), (new - old).abs().amax()]
    return torch.stack([*sums, *tops]).reshape(1, -1)


def test_an_accepted_leaf_is_what_the_rule_says(lowered: str) -> None:
    accepted = 0
    dtypes = (torch.bfloat16, torch.float16) if lowered == "torch" else DTYPES

    @settings(deadline=None, max_examples=300, derandomize=True)
    @given(leaves(dtypes), st.just(False) if lowered == "torch" else st.booleans())
    def check(drawn: tuple[torch.Tensor, ...], blind: bool) -> None:
        nonlocal accepted
        leaf = _leaf(*drawn, blind=blind)
        found = glance.glance(leaf, Rule())
        if found is None:
            return
        accepted += 1
        told = judge_alone(leaf, Rule())
        assert (found.difference, found.blamed) == (told.difference, told.blamed)
        for mine, full in (
            (found.rmse_ref, told.rmse_ref),
            (found.rmse_res, told.rmse_res),
            (found.max_abs, told.max_abs),
        ):
            # float32 rounds a truth of float64, by less than what is granted for being denormal or tiny
            assert mine == (None if full is None else pytest.approx(full, rel=1e-2, abs=1e-18))

    check()
    assert accepted > 10  # and the test is not vacuous


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_large_half_leaf_is_accepted_at_a_glance(dtype: torch.dtype) -> None:
    truth = torch.randn(1 << 11, 1 << 10, dtype=torch.float64)
    ref, res = truth.to(dtype), (truth * (1 + 1e-5 * torch.randn(truth.shape))).to(dtype)
    found = glance.glance(_leaf(ref, res, truth), Rule())
    assert found is not None
    assert found.same
    wrong = res.clone()
    wrong[1234, 56] += 0.5
    assert glance.glance(_leaf(ref, wrong, truth), Rule()) is None
    assert same(ref, wrong, truth).leaves[0].index == (1234, 56)


def test_a_tiny_or_huge_leaf_is_left_to_the_rule(lowered: str) -> None:
    truth = torch.full((1000,), 1e-30, dtype=torch.float64)
    wrong = (truth * 1.5).bfloat16()
    assert glance.glance(_leaf(truth.bfloat16(), wrong, truth), Rule()) is None
    assert not same(truth.bfloat16(), wrong, truth)


def test_without_triton_the_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "torchrepro.judge.fused_kernel", raising=False)
    glance.kernel.cache_clear()
    assert glance.kernel() is None
    glance.kernel.cache_clear()


def test_a_kernel_that_fails_is_said_once_and_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise ValueError("no such GPU")

    tensors = [types.SimpleNamespace(
        device=torch.device("cuda", 0), dtype=torch.float32, is_contiguous=lambda: True, is_neg=lambda: False
    )] * 3  # fmt: skip
    monkeypatch.setattr(glance, "kernel", lambda: object())
    monkeypatch.setattr(glance, "launch", refuse)
    monkeypatch.setattr(glance, "_unusable", [])
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    arguments: Any = (*tensors, 0.5)
    with pytest.warns(UserWarning, match="no such GPU"):
        assert glance.errors_of(*arguments) is None
    assert glance.errors_of(*arguments) is None  # warnings are errors here


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not torch.cuda.is_available(),
    reason="needs Triton and a GPU",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_kernel_measures_what_torch_does(dtype: torch.dtype) -> None:
    truth = torch.randn(100_001, dtype=torch.float64, device="cuda")
    ref, res = truth.to(dtype), (truth * 1.01).to(dtype)
    table = glance.errors_of(ref, res, truth, 1e-3)
    assert table is not None
    found, told = [*table[:, :3].sum(0), *table[:, 3:].amax(0)], _errors(ref, res, truth, 1e-3)[0]
    assert [float(each) for each in found] == pytest.approx(told.clamp(min=0.0).tolist(), rel=1e-9)


def _leaf(ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, *, blind: bool = False) -> SmallLeaf:
    return SmallLeaf("x", ref, res, None if blind else truth, precision_of(ref.dtype))
