"""What runs with noise say about a leaf that differs: ruled out, explained, or neither."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchrepro.judge.rule import Rule
from torchrepro.judge.suspects import LeafTensors, Suspect, suspect_of
from torchrepro.nouns.verdict import Difference, LeafComparison

COUNT = 1000


def suspect(eager: Tensor, compiled: Tensor) -> Suspect:
    leaf = LeafComparison("out", Difference.VALUE)
    truth = eager.double() if eager.is_floating_point() else eager
    return suspect_of(leaf, LeafTensors(eager, compiled, truth), Rule())


def uniform(seed: int) -> Tensor:
    return torch.rand(COUNT, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("discrete", [False, True])
def test_a_result_that_noise_moves_everywhere_is_not_ruled_out_by_chance(discrete: bool) -> None:
    runs = [uniform(seed) for seed in range(12)]
    if discrete:
        runs = [(run * 4).long() for run in runs]
    leaf = suspect(runs[0], runs[1])
    for run in runs[2:4]:
        leaf.add(run, False, strong=True)
    assert not leaf.is_ruled_out()
    for number, run in enumerate(runs[4:], 1):
        leaf.add(run, False, strong=False)
        if leaf.is_explained(number):
            break
    assert leaf.is_explained(number)


@pytest.mark.parametrize("discrete", [False, True])
def test_an_element_that_jumps_excuses_no_other(discrete: bool) -> None:
    eager = (uniform(0) * 100).long() if discrete else uniform(0)
    jumped, compiled = eager.clone(), eager.clone()
    jumped[3] += 7
    compiled[3] += 7
    leaf, wrong = suspect(eager, compiled), suspect(eager, compiled + (torch.arange(COUNT) == 5))
    for each in (leaf, wrong):
        each.add(jumped, False, strong=True)
        each.add(jumped, False, strong=False)
    assert not leaf.is_ruled_out()
    assert leaf.is_explained(1)
    assert wrong.is_ruled_out()
    assert not wrong.is_explained(1)


def test_a_nan_needs_a_run_with_a_nan_at_its_place() -> None:
    eager = uniform(0)
    compiled, here, there = eager.clone(), eager.clone(), eager.clone()
    compiled[3] = here[3] = there[4] = math.nan
    for run, expected in ((here, True), (there, False)):
        leaf = suspect(eager, compiled)
        for strong in (True, False):
            leaf.add(run, False, strong=strong)
        assert leaf.is_ruled_out() is not expected
        assert leaf.is_explained(1) is expected


def test_another_shape_needs_a_run_that_is_the_same() -> None:
    leaf = suspect_of(LeafComparison("out", Difference.SHAPE), None, Rule())
    leaf.add(None, False, strong=True)
    assert leaf.is_ruled_out()
    leaf.add(None, True, strong=True)
    assert not leaf.is_ruled_out()
    assert not leaf.is_explained(1)
    leaf.add(None, True, strong=False)
    assert leaf.is_explained(1)


def test_the_largest_deviations_of_different_runs_do_not_add_up_to_one() -> None:
    """Each run is off in other elements, and the compiled side in all: by RMSE it is further off than any."""
    eager = 1 + uniform(0)
    leaf = suspect(eager, eager + 1e-3)
    for run in range(8):
        leaf.add(eager + 5e-4 * (torch.arange(COUNT) % 8 == run), False, strong=False)
    assert not leaf.is_explained(8)
    leaf = suspect(eager, eager + 1e-3 * (torch.arange(COUNT) % 8 == 3))
    for run in range(8):
        leaf.add(eager + 5e-4 * (torch.arange(COUNT) % 8 == run), False, strong=False)
    assert leaf.is_explained(8)
