"""What `explain` says of failures whose rule is known, and what it may ask for that."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from explain_oracles import Comparing, explain, on_inductor
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.queries import Queries
from torchrepro.engine.store import Store
from torchrepro.explain import Budget, Explanation
from torchrepro.explain.experiment import Experiment
from torchrepro.explain.subject import Variation
from torchrepro.nouns.repro import Ambient, Place, Repro
from torchrepro.nouns.results import Area
from torchrepro.nouns.verdict import Comparison, Kind, Signature, Verdict

Rule = Callable[[torch.Tensor], bool]


def explained(
    rule: Rule, tensor: torch.Tensor, kind: Kind = Kind.MISMATCH, **options: Any
) -> tuple[Explanation, Comparing]:
    """The explanation of a repro of one op that fails by what its one input is."""
    repro = Repro(torch.fx.symbolic_trace(_negated), (tensor,))
    oracle = Comparing(on_inductor(rule), kind)
    verdict = oracle.verdict(repro)
    assert verdict.kind is kind
    found = explain(oracle.queries(repro), **options)
    return found, oracle


def _negated(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.neg(x),)


def sentences(found: Explanation) -> list[str]:
    return [fact.sentence for fact in found.facts]


def test_a_failure_from_a_size_on() -> None:
    found, oracle = explained(lambda x: x.shape[0] >= 17, torch.ones(17))
    assert "any size >= 17 in dim 0 of x fails (8 tried, up to 65), none below (9 tried)" in sentences(found)
    assert "float32, float64, bfloat16 and float16 alike" in sentences(found)
    assert "any value of x fails (25 tried), -inf, inf and nan too" in sentences(found)
    assert found.neighbour is not None
    assert found.neighbour.description == "size 16 in dim 0 of x"
    assert "-x = full((17,)" in found.neighbour.diff
    assert "+x = full((16,)" in found.neighbour.diff
    assert found.queries <= 14
    assert len(oracle.asked) <= 13


def test_a_failure_below_a_value() -> None:
    found, _ = explained(lambda x: bool((x < 0).any()), torch.full((2,), -1.0))
    (fact,) = [fact for fact in found.facts if fact.subject == "x"]
    assert fact.sentence.startswith("any value of x below 0 fails (12 tried), none at or above 0 (13 tried)")
    assert fact.sentence.endswith("-inf too, not inf or nan")
    assert "-1" in fact.failing
    assert "0.5" in fact.passing


def test_a_failure_of_some_dtypes() -> None:
    found, _ = explained(lambda x: x.dtype in (torch.float32, torch.bfloat16), torch.ones(3))
    assert "float32 and bfloat16 alike, float64 and float16 pass" in sentences(found)


def test_a_failure_that_vector_widths_hide() -> None:
    found, _ = explained(lambda x: x.shape[0] % 8 != 0, torch.ones(1))
    wanted = "any size that is not a multiple of 8 in dim 0 of x fails (12 tried), no multiple of 8 (4 tried)"
    assert wanted in sentences(found)


def test_a_failure_that_needs_gradients() -> None:
    found, _ = explained(lambda x: x.requires_grad, torch.ones(2, requires_grad=True))
    assert "only if x requires grad" in sentences(found)
    assert found.neighbour is not None
    assert found.neighbour.description == "no gradients for x"


def test_a_failure_of_one_layout() -> None:
    found, _ = explained(lambda x: x.is_contiguous(), torch.ones(2, 3))
    assert "only if x is contiguous" in sentences(found)


def test_a_failure_of_tensors_that_are_not_plain() -> None:
    zeros = torch._efficientzerotensor((3,))
    found, _ = explained(lambda x: x._is_zerotensor(), zeros)
    assert "only if x is a ZeroTensor" in sentences(found)


def test_a_failure_of_inputs_that_share_memory() -> None:
    memory = torch.ones(4)

    def fails(inputs: list[Any], repro: Repro) -> bool:
        return inputs[0].untyped_storage().data_ptr() == inputs[1].untyped_storage().data_ptr()

    repro = Repro(torch.fx.symbolic_trace(lambda x, y: (x + y,)), (memory[:2], memory[1:3]))
    oracle = Comparing(fails)
    found = explain(oracle.queries(repro))
    assert "only if the memory of x and y is shared" in sentences(found)


def test_a_failure_of_static_shapes() -> None:
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(3, 3),))
    oracle = Comparing(lambda inputs, repro: not repro.symbols)
    found = explain(oracle.queries(repro), budget=Budget(queries=30))
    assert "only with static shapes" in sentences(found)


def test_a_setting_that_the_search_had_to_leave() -> None:
    ambient = Ambient(deterministic="warn")
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(2),), ambient=ambient)
    oracle = Comparing(lambda inputs, repro: repro.ambient.deterministic == "warn")
    found = explain(oracle.queries(repro))
    assert "only with deterministic warn, not off" in sentences(found)


def test_the_stage_is_told_by_the_backends() -> None:
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(2),))
    oracle = Comparing(lambda inputs, repro: repro.compiler.name not in ("eager", "aot_eager"))
    found = explain(oracle.queries(repro))
    assert (
        "comes in with the decompositions: the backend aot_eager_decomp_partition fails too, "
        "eager and aot_eager pass" in sentences(found)
    )


def test_an_argument_and_a_sibling_op() -> None:
    def summed(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.cumsum(x, dim=1),)

    def fails(inputs: list[Any], repro: Repro) -> bool:
        return any(n.target is torch.cumsum and n.kwargs["dim"] == 1 for n in repro.graph.graph.nodes)

    repro = Repro(torch.fx.symbolic_trace(summed), (torch.ones(2, 2),))
    oracle = Comparing(fails, Kind.COMPILE_ERROR)
    found = explain(oracle.queries(repro), budget=Budget(queries=30))
    assert "dim of cumsum: 1 fails, 0 and -1 pass" in sentences(found)
    assert "only cumsum: cumprod passes" in sentences(found)


@pytest.mark.parametrize("kind", [Kind.COMPILE_ERROR, Kind.CRASH, Kind.RUN_ERROR])
def test_what_cannot_be_told_apart_in_company_is_asked_in_few_queries(kind: Kind) -> None:
    found, oracle = explained(lambda x: x.shape[0] >= 17, torch.ones(17), kind)
    assert "any size >= 17 in dim 0 of x fails (3 tried, up to 64), none below (1 tried)" in sentences(found)
    assert found.queries <= Budget().queries
    assert found.neighbour is not None
    assert found.neighbour.description == "size 16 in dim 0 of x"
    assert all(len(repro.inputs) == 1 for repro in oracle.asked if not repro.symbols)


def test_a_hang_is_asked_about_a_few_times_only() -> None:
    found, oracle = explained(lambda x: True, torch.ones(2), Kind.HANG)
    assert found.queries == len(oracle.asked) <= 6
    assert found.neighbour is None
    assert found.notes == ("no passing neighbour: none of the edits that were tried makes it pass",)


def test_another_failure_is_not_this_failure() -> None:
    class Raising(Comparing):
        def verdict(self, repro: Repro) -> Verdict:
            found = super().verdict(repro)
            other = any(isinstance(x, torch.Tensor) and x.dtype is torch.float64 for x in repro.inputs)
            return Verdict(Kind.CRASH, signal="SIGSEGV") if other else found

    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(2),))
    oracle, store = Raising(on_inductor(lambda x: True), Kind.COMPILE_ERROR), Store()
    found = explain(oracle.queries(repro, store=store))
    (fact,) = [fact for fact in found.facts if fact.subject == "dtype"]
    assert fact.sentence == "float32, bfloat16 and float16 alike; another failure with float64"
    assert fact.otherwise == ("float64",)
    assert [Signature.of(verdict).exception for verdict in store.others.values()] == ["SIGSEGV"]


def test_what_does_not_fail_in_company_is_asked_alone() -> None:
    class Shy(Comparing):
        def verdict(self, repro: Repro) -> Verdict:
            in_company = len(repro.graph.graph.find_nodes(op="output")[0].args[0]) > 1
            return Verdict(Kind.PASS, comparison=Comparison()) if in_company else super().verdict(repro)

    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(17),))
    oracle = Shy(on_inductor(lambda x: x.shape[0] >= 17))
    found = explain(oracle.queries(repro))
    assert "any size >= 17 in dim 0 of x fails (3 tried, up to 64), none below (1 tried)" in sentences(found)


def test_what_the_search_knows_is_not_asked_again() -> None:
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(2),))
    oracle = Comparing(on_inductor(lambda x: True))
    store = Store()
    without = explain(oracle.queries(repro, store=store))
    asked = [canonical_key(repro) for repro in oracle.asked]
    assert len(set(asked)) == len(asked)
    again = explain(oracle.queries(repro, store=store))
    assert sentences(again) == sentences(without)
    assert again.queries < without.queries


def test_a_whole_call_of_the_user_is_explained_by_values_and_settings() -> None:
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.full((2,), -1.0),), Place.BEFORE_CAPTURE)
    oracle = Comparing(on_inductor(lambda x: bool((x < 0).any())))
    found = explain(oracle.queries(repro))
    assert {fact.area.value for fact in found.facts} <= {"values", "backends", "compiler", "ambient"}
    assert any(fact.subject == "x" for fact in found.facts)


def test_a_flaky_failure_is_not_varied() -> None:
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(2),))
    found = explain(Queries(repro, Verdict(Kind.FLAKY), Comparing(lambda inputs, repro: True)))
    assert found.facts == ()
    assert found.queries == 0


def test_a_budget_of_nothing_asks_nothing() -> None:
    found, oracle = explained(lambda x: True, torch.ones(2), budget=Budget(queries=0))
    assert found.queries == len(oracle.asked) == 0


def test_the_header_has_four_short_lines_and_the_rest_is_in_json() -> None:
    found, _ = explained(lambda x: bool((x < 0).any()) and x.shape[0] >= 4, torch.full((4,), -1.0))
    lines = found.lines()
    assert lines[0].startswith("any value of x below 0 fails")
    assert lines[1].startswith("any size >= 4 in dim 0 of x fails")
    assert len(lines) <= 4
    assert all(len(line) <= 100 for line in lines)
    data = json.loads(json.dumps(found.to_dict()))
    assert [fact["sentence"] for fact in data["facts"]] == sentences(found)
    assert data["neighbour"]["diff"].startswith("--- fails.py\n+++ passes.py\n")
    assert data["queries"] == found.queries


def test_inputs_bear_the_names_of_the_script() -> None:
    found, _ = explained(lambda x: x.shape[0] >= 3, torch.ones(3), names={0: "weight"})
    assert any("in dim 0 of weight" in sentence for sentence in sentences(found))


@settings(max_examples=8, deadline=None)
@given(limit=st.integers(2, 60), more=st.integers(0, 20))
def test_any_limit_of_sizes_is_found(limit: int, more: int) -> None:
    found, _ = explained(lambda x: x.shape[0] >= limit, torch.ones(limit + more))
    (fact,) = [fact for fact in found.facts if fact.area.value == "sizes"]
    assert fact.sentence.startswith(f"any size >= {limit} in dim 0 of x fails")
    assert all(int(size) >= limit for size in fact.failing)
    assert all(int(size) < limit for size in fact.passing)
    assert found.neighbour is not None
    assert found.neighbour.description == f"size {limit - 1} in dim 0 of x"


@settings(max_examples=8, deadline=None)
@given(limit=st.floats(-1e6, 1e6, width=32))
def test_any_limit_of_values_is_found(limit: float) -> None:
    start = torch.full((2,), limit * 2 if limit > 0 else limit / 2 if limit < 0 else 1.0)
    found, _ = explained(lambda x: bool((x >= limit).all()), start)
    (fact,) = [fact for fact in found.facts if fact.subject == "x"]
    words = fact.sentence.removeprefix("any value of x ").split()
    side, number = words[:-1], float(words[words.index("fails") - 1])
    assert "above" in side
    assert math.isclose(number, limit, rel_tol=0.03, abs_tol=1e-37), fact.sentence


def test_a_flaky_failure_is_not_remembered_as_passing_before_all_its_runs() -> None:
    """An end between two runs (Ctrl-C, kill) must not leave a pass behind that is none."""
    repro = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(3),))
    store = Store()
    asked = 0

    class Flaky:
        workers = 1

        def judge(self, candidates: Any, **job: Any) -> Any:
            nonlocal asked
            for index, _ in enumerate(candidates):
                asked += 1
                if asked == 2:
                    raise KeyboardInterrupt
                yield index, Verdict(Kind.PASS)

    queries = Queries(repro, Verdict(Kind.RUN_ERROR), Flaky(), store=store, repeats=3)
    other = Repro(torch.fx.symbolic_trace(_negated), (torch.ones(4),))
    variation = Variation(Area.OPS, "x", "other", other, "another x")
    with pytest.raises(KeyboardInterrupt):
        Experiment(queries, Budget()).try_each([variation])
    assert store.verdict(canonical_key(other)) is None
