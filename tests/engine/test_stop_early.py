"""A candidate ends once it cannot show the original's failure any more, and then counts for nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrepro.engine.jobs import fails_before_code, is_compiled_once, judge, judge_before_code
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Raised, Stage, Verdict

LOWERING = 'File "/x/site-packages/torch/_inductor/scheduler.py", line 1, in codegen'
LOADING = f'{LOWERING}\nFile "/x/site-packages/torch/_inductor/codecache.py", line 1, in load'


@pytest.mark.parametrize(
    ("kind", "frames", "early"),
    [
        (Kind.COMPILE_ERROR, LOWERING, True),
        (Kind.COMPILE_ERROR, LOADING, False),
        (Kind.COMPILE_ERROR, 'File "/x/site-packages/torch/_dynamo/output_graph.py"', False),
        (Kind.RUN_ERROR, LOWERING, False),
    ],
)
def test_only_what_fails_before_code_is_generated_ends_early(kind: Kind, frames: str, early: bool) -> None:
    verdict = Verdict(kind, Stage.BACKEND, raised=Raised("KeyError", "'buf1'", frames))
    assert fails_before_code(verdict) is early


def _sine(x: Any) -> Any:
    return torch.sin(x)


def repro_of(function: Any, *inputs: Any, **more: Any) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), inputs, **more)


def test_a_backward_graph_may_still_be_to_come() -> None:
    plain, with_gradient = torch.ones(3), torch.ones(3, requires_grad=True)
    assert is_compiled_once(repro_of(_sine, plain))
    assert not is_compiled_once(repro_of(_sine, with_gradient))
    assert is_compiled_once(repro_of(_sine, with_gradient, backward=False))
    assert is_compiled_once(repro_of(_sine, with_gradient, place=Place.AFTER_AOT))
    assert not is_compiled_once(repro_of(_sine, plain, earlier=((plain,),)))


@pytest.mark.slow
def test_a_candidate_without_the_failure_is_not_compiled_and_no_pass() -> None:
    from torch._inductor.lowering import lowerings

    payload = {"time_limit": 300.0}
    healthy = repro_of(lambda x: torch.cos(x) + 1, torch.ones(3))
    found = judge_before_code(healthy, payload, lambda phase: None)
    assert found["kind"] == Kind.NOT_COMPARABLE
    assert "got further" in found["summary"]

    def raises(*args: Any) -> Any:
        raise KeyError("buf1")

    usual = lowerings[torch.ops.aten.cos.default]
    lowerings[torch.ops.aten.cos.default] = raises
    try:
        early, whole = (job(healthy, payload, lambda phase: None) for job in (judge_before_code, judge))
    finally:
        lowerings[torch.ops.aten.cos.default] = usual
    assert early["kind"] == whole["kind"] == Kind.COMPILE_ERROR
    assert early["raised"]["type"] == whole["raised"]["type"]
