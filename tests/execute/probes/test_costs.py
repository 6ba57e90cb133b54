"""Time, memory and the work of compiling: planted waste is found, what is as good as eager passes."""

from __future__ import annotations

import pytest
import torch
from probing import probed, repro_of

from torchrepro.execute.probes.measure import Work, interleaved, peak_of, ratio_of
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.verdict import Kind


def model(x: torch.Tensor) -> tuple[torch.Tensor]:
    return ((x @ x).relu(),)


INPUT = torch.randn(200, 200)


@pytest.mark.parametrize(
    ("kind", "compiler", "words"),
    [
        (Kind.SLOW, "lazy", "times"),
        (Kind.FAT, "greedy", "MiB at a time"),
        (Kind.SLOW_COMPILE, "pondering", "to compile"),
    ],
)
def test_waste_is_found_and_the_healthy_twin_passes(kind: Kind, compiler: str, words: str) -> None:
    wasteful = probed(kind, repro_of(model, INPUT, compiler=compiler), seconds=4.0)
    assert wasteful.kind is kind, wasteful
    assert words in wasteful.summary
    assert probed(kind, repro_of(model, INPUT, compiler="eager"), seconds=4.0).kind is Kind.PASS


def test_another_compiler_can_be_the_baseline() -> None:
    lazy = repro_of(model, INPUT, compiler="lazy")
    as_lazy = probed(Kind.SLOW, lazy, seconds=4.0, against=Compiler("probing:lazy"))
    assert as_lazy.kind is Kind.PASS
    assert "probing:lazy" in as_lazy.summary


def test_a_threshold_grants_more() -> None:
    assert probed(Kind.FAT, repro_of(model, INPUT, compiler="greedy"), threshold=1000.0).kind is Kind.PASS


def test_what_is_wrong_is_not_measured() -> None:
    assert probed(Kind.SLOW, repro_of(model, INPUT, compiler="wrong_tail")).kind is Kind.MISMATCH


def test_an_interval_that_reaches_below_the_threshold_is_no_alarm() -> None:
    steady = ratio_of([(2.0, 1.0)] * 20)
    assert steady.exceeds(1.5, by=0.1)
    assert not steady.exceeds(1.5, by=1.1)
    noisy = ratio_of([(2.0, 1.0)] * 18 + [(1.2, 1.0)] * 2)
    assert noisy.value == 2.0
    assert not noisy.exceeds(1.5, by=0.1)


def test_most_calls_may_be_disturbed() -> None:
    disturbed = [(2.0 * slower, 1.0 * slower) for slower in (1, 9, 7, 30)] * 10
    other_way = [(2.0, 40.0), (80.0, 1.0)] * 5
    for ratio in map(ratio_of, (disturbed, [*disturbed, *other_way])):
        assert 1.5 < ratio.lowest <= ratio.value == 2.0


def test_one_disturbed_pair_does_not_matter() -> None:
    costs = iter([1.0, 100.0, *[1.0] * 30])
    ratio = interleaved(lambda: next(costs), lambda: 1.0, granted=1.5, seconds=0.0)
    assert (ratio.value, ratio.lowest) == (1.0, 1.0)


def test_more_pairs_are_measured_where_it_may_fail() -> None:
    few = interleaved(lambda: 0.5, lambda: 1.0, granted=1.5, seconds=9.0, most=30)
    more = interleaved(lambda: 1.4, lambda: 1.0, granted=1.5, seconds=9.0, most=30)
    assert (few.pairs, more.pairs) == (9, 30)


def test_the_peak_is_what_is_alive_at_a_time() -> None:
    def call() -> None:
        for _ in range(3):
            torch.empty(1 << 20, dtype=torch.uint8)

    assert 1 << 20 <= peak_of(call, "cpu") < 2 << 20


def test_more_work_is_counted_as_more() -> None:
    work = Work()
    try:
        few, many = work.of(lambda: sum(range(10_000))), work.of(lambda: sum(range(3_000_000)))
    finally:
        work.close()
    assert many > 5 * few
