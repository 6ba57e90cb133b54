"""The passes on what stands around a graph: state, compiler options, earlier calls, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import SyntheticOracle, problem_of, traced

from torchrepro.edit.settings import Setting, ambient_settings, compiler_settings, without
from torchrepro.engine.queries import Queries
from torchrepro.minify.passes.settings import reset_ambient, reset_compiler, shorten_sequence
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Ambient, Autocast, Compiler, Place, Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict

AMBIENT = Ambient(
    grad_enabled=False,
    autocast=(Autocast("cpu", "bfloat16"),),
    default_dtype="float64",
    matmul_precision="high",
    deterministic="warn",
    threads=4,
    configs={"inductor": {"cpu_backend": "cpp", "max_fusion_size": 3}, "dynamo": {"verbose": True}},
    left_out=("inductor.post_grad_custom_pre_pass",),
    environ={"OMP_NUM_THREADS": "4"},
    rng={"cpu": torch.get_rng_state()},
)


def around(ambient: Ambient = AMBIENT, **fields: object) -> Repro:
    return replace(traced(lambda x: torch.relu(x), torch.ones(3)), ambient=ambient, **fields)  # type: ignore[arg-type]


def names(settings: list[Setting]) -> set[str]:
    return {setting.name for setting in settings}


def test_state_that_does_not_matter_goes_in_one_query() -> None:
    problem = problem_of(around(strict=True, tolerance=0.1), lambda repro: True)
    reset_ambient(problem)
    assert problem.queries.asked == 1
    assert problem.best.ambient == Ambient()
    assert not problem.best.ambient.rng
    assert not problem.best.strict
    assert problem.best.tolerance is None


def test_the_default_state_costs_nothing() -> None:
    problem = problem_of(around(Ambient()), lambda repro: True)
    for reset in (reset_ambient, reset_compiler, shorten_sequence):
        reset(problem)
    assert problem.queries.asked == 0


@pytest.mark.parametrize("needed", sorted(names(ambient_settings(around()))))
def test_one_setting_that_is_needed_is_found_in_few_queries(needed: str) -> None:
    problem = problem_of(around(), lambda repro: needed in names(ambient_settings(repro)))
    reset_ambient(problem)
    assert names(ambient_settings(problem.best)) == {needed}
    assert problem.queries.asked <= 6


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_no_setting_that_is_left_can_go(data: st.DataObject) -> None:
    all_names = sorted(names(ambient_settings(around())))
    groups = data.draw(st.lists(st.sets(st.sampled_from(all_names), min_size=1), min_size=1, max_size=2))

    def fails(repro: Repro) -> bool:
        return any(group <= names(ambient_settings(repro)) for group in groups)

    problem = problem_of(around(), fails)
    reset_ambient(problem)
    assert fails(problem.best)
    for setting in ambient_settings(problem.best):
        assert not fails(without(problem.best, [setting]))


def test_a_variable_that_torch_has_read_here_is_not_said_to_be_needless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    ambient = Ambient(environ={"TORCHINDUCTOR_FREEZING": "1", "TRITON_DEBUG": "1"})
    problem = problem_of(around(ambient), lambda repro: True)
    reset_ambient(problem)
    assert problem.best.ambient.environ == {"TORCHINDUCTOR_FREEZING": "1"}


def test_options_of_the_compiler_go_one_by_one() -> None:
    chosen = Compiler("inductor", "max-autotune", {"a": 1, "b": 2}, dynamic=True, fullgraph=True)
    repro = replace(around(Ambient()), compiler=chosen)
    problem = problem_of(repro, lambda found: "b" in found.compiler.options)
    reset_compiler(problem)
    assert problem.best.compiler == Compiler("inductor", options={"b": 2})
    assert problem.queries.asked <= 5
    assert names(compiler_settings(problem.best)) == {"b"}


def test_the_compiler_under_test_stays() -> None:
    repro = replace(around(Ambient()), compiler=Compiler("aot_eager", fullgraph=True))
    problem = problem_of(repro, lambda found: True)
    reset_compiler(problem)
    assert problem.best.compiler == Compiler("aot_eager")


def test_only_the_earlier_calls_that_matter_stay() -> None:
    calls = tuple((torch.full((2,), float(number)),) for number in range(8))
    repro = replace(around(Ambient()), earlier=calls)
    problem = problem_of(repro, lambda found: any(bool((x == 5).all()) for (x,) in found.earlier))
    shorten_sequence(problem)
    assert problem.best.earlier == (calls[5],)
    assert problem.queries.asked <= 6


def with_gradients() -> Repro:
    return replace(around(Ambient()), inputs=(torch.ones(3, requires_grad=True),))


def test_a_failure_without_backward_needs_no_gradients() -> None:
    problem = problem_of(with_gradients(), lambda repro: True)
    reset_ambient(problem)
    assert not problem.best.inputs[0].requires_grad
    assert problem.queries.asked == 1


def test_no_grad_goes_together_with_the_gradients_it_suppressed() -> None:
    repro = replace(with_gradients(), ambient=Ambient(grad_enabled=False))
    problem = problem_of(repro, lambda found: True)
    reset_ambient(problem)
    assert problem.best.ambient.grad_enabled
    assert not problem.best.inputs[0].requires_grad
    assert problem.queries.asked == 1


def test_a_forward_that_fails_while_autograd_records_keeps_its_gradients_but_not_its_backward() -> None:
    problem = problem_of(with_gradients(), lambda repro: repro.inputs[0].requires_grad)
    reset_ambient(problem)
    assert problem.best.inputs[0].requires_grad
    assert problem.best.backward is False


def test_a_wrong_gradient_is_not_asked_about_without_gradients() -> None:
    wrong = Comparison((LeafComparison("grad[0]", Difference.VALUE),))
    oracle = SyntheticOracle(lambda repro: True)
    problem = Problem(Queries(with_gradients(), Verdict(Kind.MISMATCH, comparison=wrong), oracle))
    reset_ambient(problem)
    assert problem.queries.asked == 0


def test_below_aot_nobody_asks_for_gradients() -> None:
    repro = replace(with_gradients(), place=Place.AFTER_AOT)
    problem = problem_of(repro, lambda found: True)
    reset_ambient(problem)
    assert problem.queries.asked == 0
