"""The benchmark of false alarms: where it plants errors, and what it does not measure twice."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.false_alarms.__main__ import SIZES, Outcome, outcomes_in, share, train, wanted
from benchmarks.false_alarms.planting import plant
from benchmarks.false_alarms.programs import PROGRAMS

aten = torch.ops.aten


def hides_an_exponential(x: Tensor) -> Tensor:
    kept = x.exp().exp().sqrt() > 1.5
    return torch.where(kept, x * 0.3, x)


def test_an_error_is_planted_where_a_result_shows_it() -> None:
    x = torch.linspace(0.1, 1, 50)
    traced = make_fx(hides_an_exponential, tracing_mode="fake")(x)
    before = traced(x)
    chosen = plant(traced.graph, 1000.0)
    assert chosen is not None
    assert chosen.target is aten.mul.Tensor
    traced.recompile()
    error = ((traced(x) - before) / before).abs()
    assert error.max().item() == pytest.approx(1000 * torch.finfo(torch.float32).eps, rel=0.01)


def test_no_error_is_planted_where_nothing_rounds() -> None:
    traced = make_fx(lambda x: x.relu().flip(0), tracing_mode="fake")(torch.ones(3))
    assert plant(traced.graph, 1000.0) is None


def test_what_a_file_has_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    options = argparse.Namespace(json=file, steps=3, planted_steps=2, device="cpu")
    assert wanted("gan", options) == [(3, 0.0), *((2, float(size)) for size in SIZES)]
    healthy = Outcome("gan", "cpu", steps=3, checks=12, kinds={"pass": 12})
    wrong = Outcome("gan", "cpu", planted_ulp=8.0, steps=2, checks=8, alarms=4, explained=2)
    file.write_text("".join(msgspec.json.encode(one).decode() + "\n" for one in (healthy, wrong)))
    assert outcomes_in(file) == [healthy, wrong]
    assert wanted("gan", options) == [(2, 2.0), (2, 32.0), (2, 1000.0)]
    assert len(wanted("experts", options)) == 1 + len(SIZES)
    assert [share(one) for one in (wrong, healthy, None)] == ["50% (25%)", "0%", "–"]


@pytest.mark.slow
def test_a_program_is_healthy_and_its_planted_error_is_found() -> None:
    healthy = train("quantisation", "cpu", 2)
    assert (healthy.alarms, healthy.checks, healthy.kinds) == (0, 2, {"pass": 2})
    wrong = train("quantisation", "cpu", 2, 1000.0)
    assert (wrong.alarms, wrong.checks) == (2, 2)
    assert wrong.planted_in


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_comparable_and_healthy(name: str) -> None:
    outcome = train(name, "cpu", 3)
    assert outcome.kinds == {"pass": outcome.checks}
    assert outcome.checks >= 3
