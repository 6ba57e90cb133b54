"""Every pair of the truth table gets the verdict it deserves, and neither side is touched."""

from __future__ import annotations

import pytest
import torch
from truth_table import PAIRS, Pair

from torchrepro.judge.compare import same
from torchrepro.nouns.verdict import Blame


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_pair_gets_the_verdict_it_deserves(pair: Pair) -> None:
    ref, res, truth = pair.make()
    comparison = same(ref, res, truth, **pair.options)
    assert bool(comparison) is pair.same, str(comparison)
    if pair.difference is not None:
        assert comparison.differing[0].difference is pair.difference
        assert comparison.blamed is Blame.COMPILED or not pair.options.get("equal_nan", True)
        assert comparison.differing[0].detail
    if pair.blamed is not None:
        assert comparison.blamed is pair.blamed


def test_the_table_is_large_and_its_names_are_unique() -> None:
    names = [pair.name for pair in PAIRS]
    assert len(names) >= 100
    assert len(set(names)) == len(names)
    healthy = sum(pair.same for pair in PAIRS)
    assert min(healthy, len(names) - healthy) >= 60


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_no_verdict(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for pair in PAIRS[::7]:
            ref, res, truth = pair.make()
            assert bool(same(ref, res, truth, **pair.options)) is pair.same, pair.name
    finally:
        torch.set_num_threads(before)
