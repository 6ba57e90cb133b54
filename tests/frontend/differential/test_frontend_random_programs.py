"""Random programs do what Python does: on fresh values, on other arguments, whatever they change."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchrepro.hunt.generators.python_programs import PythonProgram, generate
from torchrepro.hunt.judge_programs import judge_program

FAST = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
THOROUGH = settings(FAST, max_examples=3000, derandomize=False)
RANDOMS = st.randoms(use_true_random=False)


def check(program: PythonProgram) -> None:
    judged = judge_program(program, ("torchrepro",))
    assert not judged.verdict.fails, f"{judged.verdict}\n{program.source}"


@FAST
@given(RANDOMS)
def test_a_random_program_does_what_python_does(random: Random) -> None:
    check(generate(random))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@THOROUGH
@given(RANDOMS)
def test_thousands_of_random_programs_do_what_python_does(random: Random) -> None:
    check(generate(random, statements=8))


def test_a_local_class_and_a_function_with_a_break_share_a_variable() -> None:
    check(
        PythonProgram("""
import torch
class Box:
    def __init__(self, value):
        self.value = value
def program(x, n):
    box = type("Local", (Box,), {"run": lambda self: self.value * n})(x)
    def change():
        nonlocal n
        n = 0
        torch._dynamo.graph_break()
    change()
    return box.run()
def calls():
    yield dict(x=torch.ones(3), n=2)
""")
    )
