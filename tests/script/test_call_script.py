"""A whole call of the user's code as a script: the code, the call, the assertion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from script_cases import ERROR, lowered, scripts_for, wrong

from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.nouns.repro import Ambient, Compiler, Repro

counter = {"calls": 0}
scale = 3


def helper(x: Any) -> Any:
    return x * scale


def counted(x: Any, power: int = 1) -> Any:
    counter["calls"] += 1
    return helper(x) ** power


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.weight


def _repro(function: Any, *args: Any) -> Repro:
    return repro_of_call(function, args, {}, compiler=Compiler(), ambient=Ambient())


def _end(text: str) -> str:
    """The part of the script after the user's code."""
    return text.rpartition("\n\n\n")[2]


def test_a_function_with_what_it_needs() -> None:
    script = scripts_for(_repro(counted, torch.ones(3), 2), wrong("out"))[0]
    assert not script.remark
    assert "def counted(" in script.text
    assert "def helper(" in script.text
    assert "scale = 3" in script.text
    assert _end(script.text) == (
        "x = torch.ones(3)\n"
        "eager = counted(x, 2)\n"
        "compiled = torch.compile(counted)(x, 2)\n"
        "torch.testing.assert_close(compiled, eager)\n"
    )
    compile(script.text, "repro.py", "exec")


def test_an_error_of_capture() -> None:
    script = scripts_for(_repro(counted, torch.ones(3)), ERROR)[0]
    assert _end(script.text) == (
        "x = torch.ones(3)\n"
        "counted(x)  # eager is fine\n"
        "torch.compile(counted)(x)  # NotImplementedError: no lowering for aten.foo\n"
    )


def test_a_lost_side_effect_is_looked_for_in_state_that_was_put_back() -> None:
    script = scripts_for(_repro(counted, torch.ones(3)), wrong('python["globals.counter"]["calls"]'))[0]
    assert 'def run(counted):\n    counter.clear()\n    counter.update({"calls": 0})\n' in script.text
    assert '    return counter["calls"]\n' in script.text
    assert _end(script.text) == (
        "eager = run(counted)\n"
        "compiled = run(torch.compile(counted))\n"
        "torch.testing.assert_close(compiled, eager)\n"
    )


def test_a_module_is_copied_for_each_run_where_one_would_see_the_other() -> None:
    plain, apart = scripts_for(_repro(Scaled(), torch.ones(3)), wrong("out"))[:2]
    assert "compiled = torch.compile(scaled)(x)" in plain.text
    assert "torch.nn.Parameter(torch.ones(3))" in plain.text
    assert "compiled = run(torch.compile(copy.deepcopy(scaled)))" in apart.text


def test_scripts_run_as_far_as_eager_goes() -> None:
    for function in (counted, Scaled()):
        for script in scripts_for(_repro(function, torch.ones(3)), wrong("out"))[:2]:
            code = script.text.replace("torch.compile(", "(lambda function: function)(")
            exec(compile(code, "repro.py", "exec"), {"__name__": "__main__"})


def test_operators_of_the_user_are_registered_by_the_script() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    operator = torch.library.custom_op("polish_calls::twice", twice, mutates_args=())
    operator.register_fake(lambda x: torch.empty_like(x))
    repro = lowered(lambda x: operator(x) + 1, torch.ones(3))
    script = scripts_for(repro, ERROR)[0]
    assert "    return torch.ops.polish_calls.twice(x) + 1\n" in script.text
    assert "operators = [register_polish_calls__twice()]\n" in script.text
    assert "torchrepro" not in script.text


def test_a_backend_of_the_user_comes_along() -> None:
    repro = replace(lowered(torch.relu, torch.ones(3)), compiler=Compiler(f"{__name__}:interpreted"))
    text = scripts_for(repro, ERROR)[0].text
    assert f"import {__name__}\n" in text
    assert f"torch.compile(f, backend={__name__}.interpreted)(x)" in text


def interpreted(graph: Any, example_inputs: list[Any]) -> Any:
    return graph.forward
