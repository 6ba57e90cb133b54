"""The same call again: other bits are a failure, unless they are rounding that torch documents."""

from __future__ import annotations

import sys

import pytest
import torch
from probing import probed, repro_of

from torchrepro.nouns.probe import FILLED
from torchrepro.nouns.verdict import Kind


def doubled(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x.sin() * 2,)


def test_a_single_bit_in_the_third_run_is_found() -> None:
    verdict = probed(Kind.REPEAT, repro_of(doubled, torch.randn(8), compiler="third_call"))
    assert verdict.kind is Kind.REPEAT
    assert "run 3 differs from the first" in verdict.summary


def test_a_healthy_compiler_gives_the_same_bits() -> None:
    verdict = probed(Kind.REPEAT, repro_of(doubled, torch.randn(8)))
    assert verdict.kind is Kind.PASS
    assert "same bits" in verdict.summary


def test_random_numbers_start_from_the_same_state_in_each_run() -> None:
    model = repro_of(lambda x: (torch.dropout(x, 0.5, True),), torch.randn(64))
    assert probed(Kind.REPEAT, model).kind is Kind.PASS


def test_what_torch_calls_non_deterministic_may_differ_by_rounding() -> None:
    verdict = probed(Kind.REPEAT, repro_of(doubled, torch.randn(8), compiler="unordered"))
    assert verdict.kind is Kind.PASS, verdict
    assert "use_deterministic_algorithms" in verdict.summary


def test_a_compiler_that_is_told_to_be_deterministic_has_no_excuse() -> None:
    from dataclasses import replace

    repro = repro_of(doubled, torch.randn(8), compiler="third_call")
    told = replace(repro, ambient=replace(repro.ambient, deterministic="warn"))
    assert probed(Kind.REPEAT, told).kind is Kind.REPEAT


def test_memory_that_nothing_has_written_is_found_by_filling_it() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("glibc alone fills memory on demand")
    verdict = probed(Kind.REPEAT, repro_of(doubled, torch.randn(8), compiler="unwritten"), tries=(FILLED,))
    assert verdict.kind is Kind.REPEAT, verdict
    assert "other bytes in new memory" in verdict.summary


def test_what_eager_reads_unwritten_too_is_no_failure() -> None:
    model = repro_of(lambda x: (x, torch.empty_strided((4096,), (1,))[100:101].abs()), torch.randn(8))
    assert not probed(Kind.REPEAT, model).fails
