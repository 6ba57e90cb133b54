"""`assert_same_models`: what passes, what fails with a bundle, and what can say neither."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from typing import Any

import faulty_backends
import pytest
import torch

import torchrepro
from torchrepro import Kind, check_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.nouns.errors import TorchReproError
from torchrepro.testing import ModelsDiffer, assert_same_models

WRONG = "faulty_backends:wrong"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return self.linear(x).relu() * scale


class Disabled(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_healthy_model_passes_and_stays_as_it_was(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 3, requires_grad=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for inputs, kwargs in (((x,), None), (x, None), ({"x": x, "scale": 2.0}, None), (x, {"scale": 3.0})):
        assert_same_models(model, inputs, kwargs, backend="aot_eager", out=tmp_path)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert (model.calls, x.grad, model.linear.weight.grad) == (0, None, None)
    assert list(tmp_path.iterdir()) == []


def test_every_comparison_compiles_however_many_there_were() -> None:
    compiled: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        compiled.append(1)
        return graph.forward

    for size in range(1, 13):  # Dynamo stops compiling a function after eight times
        assert_same_models(Net(), (torch.randn(size, 3),), backend=counting)
    assert len(compiled) >= 12


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (lambda x: x @ torch.ones(7, 7), "eager itself fails"),
        (Disabled(), "nothing was compiled"),
        (lambda x: x + torch.Generator().seed() % 1000, "eager differs from itself"),
    ],
)
def test_what_cannot_be_compared_does_not_pass(model: Any, fact: str) -> None:
    with pytest.raises(TorchReproError, match=fact):
        assert_same_models(model, (torch.ones(3),), backend="aot_eager")


def test_a_misspelled_backend_is_an_error_and_no_failure_of_the_model() -> None:
    with pytest.raises(TorchReproError, match="did you mean 'inductor'"):
        assert_same_models(Net(), (torch.ones(1, 3),), backend="inducter")


@pytest.mark.slow
def test_wrong_numbers_fail_a_unittest_with_a_bundle_that_fails_again(tmp_path: Path) -> None:
    raised: list[ModelsDiffer] = []

    class Case(unittest.TestCase):
        def test_net(self) -> None:
            try:
                assert_same_models(Net(), (torch.ones(2, 3),), backend=WRONG, out=tmp_path)
            except ModelsDiffer as exc:
                raised.append(exc)
                raise

    result = unittest.TestResult()
    Case("test_net").run(result)
    assert (len(result.failures), len(result.errors)) == (1, 0)
    (difference,) = raised
    bundle = difference.bundle
    assert bundle is not None
    assert bundle.parent == tmp_path
    assert difference.verdict.kind is Kind.MISMATCH
    told = result.failures[0][1]
    assert str(bundle) in told
    assert re.search(r"bucket       [0-9a-f]{16} mismatch", told)
    assert "1.25" in told or "wrong" in told
    checked = check_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))
    assert checked.reproduces


@pytest.mark.slow
def test_a_compiled_model_is_compared_with_its_own_compiler_though_nothing_can_be_saved(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    compiled = torch.compile(Net(), backend=faulty_backends.raises_while_compiling)
    with pytest.raises(ModelsDiffer, match="no kernel for this") as raised:
        assert_same_models(compiled, (torch.ones(2, 3),), out=tmp_path / "file" / "below")
    assert raised.value.verdict.kind is Kind.COMPILE_ERROR
    assert "no bundle: " in str(raised.value)


def test_inside_a_watch_the_failure_has_one_bundle_and_no_earlier_one(tmp_path: Path) -> None:
    with torchrepro.watch(level=4, out=tmp_path) as session:
        torch.compile(torch.cos, backend=faulty_backends.wrong)(torch.ones(3))
        with pytest.raises(ModelsDiffer) as raised:
            assert_same_models(Net(), (torch.ones(2, 3),), backend=WRONG, backward=False, out=tmp_path)
    assert len(session.kept) == 2
    assert raised.value.bundle == session.kept[-1]


def test_strict_and_tol_replace_the_rule(tmp_path: Path) -> None:
    def nearly(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return lambda *args: tuple(out * (1 + 2**-23) for out in graph.forward(*args))

    function, x = torch.nn.Identity(), torch.linspace(1, 2, 7)
    wide = lambda x: function(x) + 1  # noqa: E731
    assert_same_models(wide, (x,), backend=nearly)
    assert_same_models(wide, (x,), backend=faulty_backends.wrong, tol=1.0)
