"""Judging whole calls: capture's own failures show, healthy calls pass, and no run sees another's traces."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import CASES, answer, as_strangers, torchrepro

from torchrepro import Ambient, Compiler, Kind, Repro, Signature, save_bundle
from torchrepro.bundle.user_calls import callee_of, repro_of_call
from torchrepro.execute.judge_repro import judge_repro, repro_run
from torchrepro.execute.judge_user_call import detached
from torchrepro.execute.user_model import load_factory

calls: list[int] = []
"""A global that the functions below change."""


def of_call(function: Any, *args: Any, backend: str = "eager", **kwargs: Any) -> Repro:
    return repro_of_call(function, args, kwargs, compiler=Compiler(backend), ambient=Ambient())


def counting(x: torch.Tensor) -> torch.Tensor:
    calls.append(len(calls))
    return x.sin() * len(calls)


def judged_case(number: int) -> Repro:
    built = load_factory(f"{CASES}/case_{number}.py:build").fresh()
    repro = of_call(built.model, *built.args)
    return replace(repro, expected=Signature.of(judge_repro(repro)))


@pytest.mark.slow
@pytest.mark.thorough  # `run --whole` saves and checks the same two in CI
@pytest.mark.parametrize("number", [192985, 197896])
def test_a_failure_of_capture_shows_again_in_a_fresh_process(number: int, tmp_path: Path) -> None:
    repro = judged_case(number)
    verdict = judge_repro(repro)
    assert verdict.kind is Kind.MISMATCH
    bundle = save_bundle(repro, tmp_path / "bundle", verdict=verdict)
    checked = torchrepro("check", "--json", "--trust", "source", bundle)
    assert checked.returncode == 1, checked.stderr
    assert answer(checked)["reproduces"] is True
    script = subprocess.run(
        [sys.executable, "-I", bundle / "repro.py"], cwd="/", capture_output=True, text=True, timeout=200
    )
    assert script.returncode == 1, script.stderr
    assert script.stdout.strip().endswith("reproduced")


@pytest.mark.slow
def test_a_healthy_call_passes_everywhere(tmp_path: Path) -> None:
    repro = of_call(counting, torch.randn(3, requires_grad=True))
    verdict = judge_repro(repro)
    assert verdict.kind is Kind.PASS
    bundle = save_bundle(repro, tmp_path / "bundle", verdict=verdict)
    shown = torchrepro("show", "--source", bundle)
    assert "def counting" in shown.stdout
    refused = torchrepro("check", as_strangers(bundle))
    assert refused.returncode == 125
    assert "--trust source" in refused.stderr
    script = subprocess.run(
        [sys.executable, "-I", bundle / "repro.py"], cwd="/", capture_output=True, text=True, timeout=200
    )
    assert script.returncode == 0, script.stdout + script.stderr


def test_judging_leaves_no_trace_in_the_users_code() -> None:
    assert judge_repro(of_call(counting, torch.ones(2))).kind is Kind.PASS
    assert calls == []


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        result: torch.Tensor = self.linear(x)
        return result


def test_gradients_buffers_and_attributes_of_a_module_are_compared() -> None:
    verdict = judge_repro(of_call(Counter(), torch.ones(2)))
    assert verdict.kind is Kind.PASS
    assert verdict.comparison is not None
    paths = {leaf.path for leaf in verdict.comparison.leaves}
    expected = ("out", 'grad["model.linear.weight"]', 'state["model.seen"]', 'python["model.calls"]')
    assert set(expected) <= paths


def test_earlier_calls_lead_up_to_the_last(tmp_path: Path) -> None:
    repro = replace(of_call(Counter(), torch.ones(2)), earlier=((torch.zeros(2),), (torch.ones(2),)))
    verdict = judge_repro(repro)
    assert verdict.kind is Kind.PASS
    bundle = save_bundle(repro, tmp_path / "bundle")
    assert bundle.exists()


def test_an_error_of_the_compiled_call_is_its_own() -> None:
    repro = of_call(counting, torch.ones(2), backend=f"{__name__}:broken")
    assert judge_repro(repro).kind is Kind.COMPILE_ERROR
    with pytest.raises(Exception, match="out of order"):
        repro_run(repro)


def broken(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    raise ValueError("out of order")


def test_a_detached_call_is_as_it_was_before_the_original_ran() -> None:
    model, x = Counter(), torch.ones(2)
    kept = detached(of_call(model, x))
    model(x.zero_())
    again = callee_of(kept.graph)
    assert isinstance(again, torch.nn.Module)
    assert again.calls == 0
    assert again.seen.item() == 0
    assert kept.inputs[0].tolist() == [1.0, 1.0]


def test_a_call_can_be_run_without_judging() -> None:
    outputs = repro_run(of_call(counting, torch.zeros(2)), accuracy=False)
    assert outputs.tolist() == [0.0, 0.0]
