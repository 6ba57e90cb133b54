"""Many sizes and values of one op in one compilation: what a wrong value that needs both costs."""

from __future__ import annotations

import torch
from input_search import ConditionOracle, first, search_inputs, separate
from synthetic import traced

from torchrepro.engine.baseline import RUNS
from torchrepro.engine.queries import Queries
from torchrepro.minify.passes.shapes import shrink_dimensions
from torchrepro.minify.passes.simplest import guess_simplest
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict


def test_the_smallest_size_and_its_plain_value_are_found_in_one_compilation() -> None:
    def wrong(repro: Repro) -> bool | tuple[int, ...]:
        x = first(repro)
        return (int(x.argmin()),) if x.numel() >= 16 and bool((x < 0).any()) else False

    problem, asked = search_inputs(traced(lambda x: x.amin(), torch.randn(64) - 5), wrong)
    assert torch.equal(first(problem.best), torch.full((16,), -1.0))
    assert asked == 3, "plain; all together; the one found: one element less is healthy together"


def test_that_it_failed_next_to_others_is_one_of_the_runs_that_show_flakiness() -> None:
    def wrong(repro: Repro) -> bool | tuple[int, ...]:
        return (0,) if first(repro).numel() >= 16 else False

    problem, asked = search_inputs(traced(lambda x: x.amin(), torch.rand(64)), wrong)
    problem.measure_flakiness(RUNS - 1)
    assert problem.queries.asked == asked, "together, alone, and the script"
    problem.measure_flakiness()
    assert problem.queries.asked == asked + 1


def test_a_size_between_the_likely_ones_is_still_the_smallest() -> None:
    def wrong(repro: Repro) -> bool | tuple[int, ...]:
        return (0,) if first(repro).numel() >= 21 else False

    problem, _ = search_inputs(traced(lambda x: x.amin(), torch.rand(64)), wrong)
    assert torch.equal(first(problem.best), torch.ones(21))


def test_two_sizes_are_found_in_one_compilation() -> None:
    def wrong(repro: Repro) -> bool | tuple[int, ...]:
        x = first(repro)
        return (0,) if x.dim() == 2 and x.shape[0] >= 2 and x.shape[1] >= 8 else False

    problem, asked = search_inputs(traced(lambda x: x.amin(), torch.rand(12, 12)), wrong)
    assert torch.equal(first(problem.best), torch.ones(2, 8))
    assert asked == 3, "plain; all together; the one found: one less in either is healthy together"


class HealthyInCompany(ConditionOracle):
    """Graphs that are next to one another do not fail."""

    def verdict(self, repro: Repro) -> Verdict:
        count = len(separate(repro))
        if count == 1:
            return super().verdict(repro)
        return Verdict(
            Kind.PASS, comparison=Comparison(tuple(LeafComparison(f"out[{n}]") for n in range(count)))
        )


def test_what_is_healthy_where_the_original_is_healthy_too_is_asked_alone() -> None:
    repro = traced(lambda x: x.amin(), torch.rand(64))
    oracle = HealthyInCompany(lambda repro: (0,) if first(repro).numel() >= 16 else False)
    problem = Problem(Queries(repro, oracle.verdict(repro), oracle))
    guess_simplest(problem)
    shrink_dimensions(problem)
    assert first(problem.best).shape == (16,)


class FailsInCompany(ConditionOracle):
    """Graphs that are next to one another all fail."""

    def verdict(self, repro: Repro) -> Verdict:
        count = len(separate(repro))
        if count == 1:
            return super().verdict(repro)
        leaves = (LeafComparison(f"out[{number}]", Difference.VALUE, index=(0,)) for number in range(count))
        return Verdict(Kind.MISMATCH, comparison=Comparison(tuple(leaves)))


def test_what_fails_only_next_to_others_is_not_adopted() -> None:
    repro = traced(lambda x: x.amin(), torch.rand(64))
    oracle = FailsInCompany(lambda repro: (0,) if first(repro).numel() == 64 else False)
    problem = Problem(Queries(repro, oracle.verdict(repro), oracle))
    guess_simplest(problem)
    assert any(len(separate(asked)) > 1 for asked in oracle.asked)
    assert problem.best is repro


class PlainValuesFailInCompanyAlone(ConditionOracle):
    """Alone, a graph fails only with values that differ: an `argmin` of equal values has many answers."""

    def verdict(self, repro: Repro) -> Verdict:
        found = super().verdict(repro)
        healthy = len(separate(repro)) == 1 and len(first(repro).unique()) < 3
        return Verdict(Kind.PASS) if found.fails and healthy else found


def test_where_plain_values_fail_only_next_to_others_own_values_are_asked_alone() -> None:
    repro = traced(lambda x: x.amin(), torch.rand(64))
    oracle = PlainValuesFailInCompanyAlone(lambda repro: (0,) if first(repro).numel() >= 16 else False)
    problem = Problem(Queries(repro, oracle.verdict(repro), oracle))
    guess_simplest(problem)
    assert first(problem.best).shape == (16,)
    assert len(oracle.asked) == 4, "plain; all together; plain ones of 16; its own values"
