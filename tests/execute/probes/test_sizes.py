"""One artefact over many sizes: what is wrong for some of them is found, what eager cannot do is skipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capturing import capture
from probing import probed, repro_of

from torchrepro.graph_text.metadata import symbols_of
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind


def doubled(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x.sin() * 2,)


def test_a_tail_that_is_wrong_beyond_sixteen_is_found_from_eight() -> None:
    verdict = probed(Kind.SIZES, repro_of(doubled, torch.randn(8), compiler="wrong_tail"))
    assert verdict.kind is Kind.SIZES
    assert "each size 8 = 17" in verdict.summary
    assert verdict.comparison is not None
    assert verdict.comparison.differing[0].where.output == 0


def test_a_healthy_compiler_passes_and_says_how_many_sizes_it_saw() -> None:
    verdict = probed(Kind.SIZES, repro_of(doubled, torch.randn(8)))
    assert verdict.kind is Kind.PASS
    assert "tried" in verdict.summary


def test_an_error_for_one_size_alone_is_of_this_kind_too() -> None:
    verdict = probed(Kind.SIZES, repro_of(doubled, torch.randn(8), compiler="odd_sizes_raise"))
    assert verdict.kind is Kind.SIZES
    assert verdict.raised is not None
    assert "wrong size" in verdict.raised.message


def test_what_fails_at_the_recorded_size_is_an_ordinary_failure() -> None:
    verdict = probed(Kind.SIZES, repro_of(doubled, torch.randn(20), compiler="wrong_tail"))
    assert verdict.kind is Kind.MISMATCH


def test_only_the_sizes_that_a_probe_names_are_tried() -> None:
    repro = repro_of(doubled, torch.randn(8), compiler="wrong_tail")
    assert probed(Kind.SIZES, repro, tries=("9",)).kind is Kind.PASS
    assert probed(Kind.SIZES, repro, tries=("33",)).kind is Kind.SIZES


def test_sizes_that_eager_refuses_are_no_failure() -> None:
    verdict = probed(Kind.SIZES, repro_of(lambda x: (x.view(2, 4) @ torch.ones(4),), torch.randn(8)))
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert "not asked" in verdict.summary


def specialised(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] < 10 else x - 1


@pytest.mark.parametrize(("function", "kind"), [(torch.sin, Kind.SIZES), (specialised, Kind.PASS)])
def test_a_graph_with_symbols_is_asked_within_its_guards(function: Any, kind: Kind) -> None:
    """The branch that was taken holds below ten alone: with 17 it is not this artefact that would run."""
    captured = capture(lambda x: function(x), torch.randn(8), dynamic=True)[0]
    symbols = symbols_of(captured.graph)
    repro = Repro(captured.graph, captured.inputs, symbols=symbols, compiler=Compiler("probing:wrong_tail"))
    verdict = probed(Kind.SIZES, repro)
    assert verdict.kind is kind, verdict
