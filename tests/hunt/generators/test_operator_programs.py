"""Programs of torch's operators: the same from a seed, and such that eager runs them."""

from __future__ import annotations

import pytest
import torch

from torchrepro.hunt.jobs import Program, program_of, why_no_program
from torchrepro.judge.compare import same
from torchrepro.judge.rule import Rule


def _programs(count: int) -> list[Program]:
    return [program_of(f"operators-{number:x}") for number in range(count)]


@pytest.mark.slow
def test_a_seed_gives_the_same_program_again_whatever_was_drawn_before() -> None:
    first = program_of("operators-2a").repro
    torch.rand(3)
    again = program_of("operators-2a").repro
    assert first is not None
    assert again is not None
    assert first.graph.code == again.graph.code
    assert same(first.inputs, again.inputs, rule=Rule(strict=True))


@pytest.mark.slow
def test_generating_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    program_of("operators-2b")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_most_seeds_lead_to_programs_that_eager_runs_and_that_vary() -> None:
    repros = [program.repro for program in _programs(60) if program.repro is not None]
    assert len(repros) > 50
    assert sum(not why_no_program(repro) for repro in repros) > 40
    inputs = [value for repro in repros for value in repro.inputs]
    assert {value.dtype for value in inputs} > {torch.float32, torch.bfloat16, torch.int64}
    assert any(not value.is_contiguous() for value in inputs)
    assert any(value.requires_grad for value in inputs)
    assert any(value.is_floating_point() and value.isnan().any() for value in inputs)
    assert {repro.ops for repro in repros} > {1, 2, 3}
