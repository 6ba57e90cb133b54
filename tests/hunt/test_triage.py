"""The first failure makes a bucket; the next of its kind is recognised by the rule of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchrepro.execute.judge_repro import judge_repro
from torchrepro.hunt import triage as module
from torchrepro.hunt.buckets import Recognised, buckets_in
from torchrepro.hunt.triage import triage
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.save_bundle import save_bundle


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", here)


def failing(place: Path, function: Callable[..., Any], *inputs: Tensor) -> Path:
    graph = torch.fx.symbolic_trace(function)
    repro = Repro(graph, inputs, compiler=Compiler("wrong_sines:wrong_sines"))
    verdict = judge_repro(repro)
    assert verdict.kind is Kind.MISMATCH
    return save_bundle(repro, place, verdict=verdict)


@pytest.mark.slow
def test_a_failure_makes_a_bucket_and_the_next_of_its_kind_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = tmp_path / "buckets"
    first = failing(
        tmp_path / "a", lambda x, y: (x.sin() * y.exp() + 1, y.cos()), torch.ones(64), torch.ones(64)
    )
    made = triage(first, "operators-1", buckets, seconds=240, jobs=1)
    assert made.new
    assert made.minimal
    assert made.reason.startswith("sin(")
    assert "size >= 16" in made.reason

    def searched(*_: Any, **__: Any) -> Any:
        raise AssertionError("a known failure is not minified")

    monkeypatch.setattr(module, "minify_search", searched)
    second = failing(tmp_path / "b", lambda x: (x.abs().sqrt().sin().reshape(2, 20).sum(1),), torch.ones(40))
    known = triage(second, "operators-2", buckets)
    assert known.recognised is Recognised.RULE
    assert known.bucket == made.bucket
    assert triage(second, "operators-2", buckets).bucket == made.bucket

    (bucket,) = buckets_in(buckets)
    assert [member.seed for member in bucket.members()] == ["operators-1", "operators-2"]


def test_a_bundle_that_does_not_fail_is_an_error_that_says_what_to_run(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    healthy = save_bundle(Repro(graph, (torch.ones(2),)), tmp_path / "healthy", verdict=Verdict(Kind.PASS))
    with pytest.raises(TorchReproError, match="has no recorded failure") as raised:
        triage(healthy, "operators-3", tmp_path / "buckets")
    assert "torchrepro check" in str(raised.value.next_step)
