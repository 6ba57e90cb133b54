"""Random programs do what Python does: on fresh values, on other arguments, whatever they change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.frontend.corpus.facts import Facts
from tests.frontend.differential.programs import Box, Program, programs
from tests.frontend.harness import Counting, Way, assert_same, eager, observed_call, under_test

CALLS = (
    (1, 3, True, True),
    (2, 3, True, True),
    (3, 3, False, True),
    (4, 5, True, False),
    (5, 3, True, False),
)
"""Seed, size, flag, gradients: other values, then another branch, another shape, no gradients."""
FAST = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
THOROUGH = settings(FAST, max_examples=3000, derandomize=False)


def arguments(seed: int, size: int, flag: bool, gradients: bool) -> dict[str, Any]:
    torch.manual_seed(seed)
    leaf = torch.randn(size, 4, requires_grad=gradients)
    box = Box(torch.randn(size, 4))
    box.leaf = leaf
    return {
        "a": torch.randn(size, 4),
        "b": leaf * 1,
        "n": 2,
        "flag": flag,
        "mode": "up" if flag else "down",
        "xs": [torch.randn(size, 4)],
        "box": box,
    }


def behaviour(program: Program, way: Way) -> list[Facts]:
    function = program.compile()
    call = way(function, Counting(), False)

    def state() -> dict[str, Any]:
        return {name: function.__globals__[name] for name in ("state", "net")}

    return [observed_call(call, (), arguments(*chosen), more=state) for chosen in CALLS]


def check(program: Program) -> None:
    expected, found = behaviour(program, eager), behaviour(program, under_test())
    assert_same(expected, found, f" of\n{program.source}")


@FAST
@given(programs())
def test_a_random_program_does_what_python_does(program: Program) -> None:
    check(program)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@THOROUGH
@given(programs(max_statements=10))
def test_thousands_of_random_programs_do_what_python_does(program: Program) -> None:
    check(program)


@settings(FAST, max_examples=30)
@given(programs())
def test_a_random_program_is_valid_and_repeats_itself(program: Program) -> None:
    """The programs themselves: they compile, end, and raise nothing that is not meant."""
    first, again = behaviour(program, eager), behaviour(program, eager)
    assert first == again
    assert all(facts.get("error", "Stop") == "Stop" for facts in first), first
