"""Batch, threads, hold and recompile: a planted failure of each is found, and its healthy twin passes."""

from __future__ import annotations

import pytest
import torch
from capturing import capture
from probing import compilations, probed, repro_of

from torchrepro.graph_text.metadata import symbols_of
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind


def rows(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.relu(x @ weight).softmax(-1),)


MODEL = (rows, torch.randn(4, 8), torch.randn(8, 4))
PLANTED = [
    (Kind.BATCH, "alone_is_wrong", "row 0 of 4 alone"),
    (Kind.THREADS, "three_threads", "3 threads"),
    (Kind.HOLD, "same_memory", "results have changed"),
    (Kind.RECOMPILE, "second_compilation", "compiled again"),
]


@pytest.mark.parametrize(("kind", "compiler", "words"), PLANTED)
def test_what_was_planted_is_found(kind: Kind, compiler: str, words: str) -> None:
    compilations.clear()
    verdict = probed(kind, repro_of(*MODEL, compiler=compiler))
    assert verdict.kind is kind, verdict
    assert words in verdict.summary


@pytest.mark.parametrize("kind", [kind for kind, _, _ in PLANTED])
def test_the_healthy_twin_passes(kind: Kind) -> None:
    verdict = probed(kind, repro_of(*MODEL))
    assert verdict.kind is Kind.PASS, verdict


@pytest.mark.parametrize(("kind", "compiler"), [row[:2] for row in PLANTED if row[0] is not Kind.RECOMPILE])
def test_no_other_probe_takes_it_for_its_own(kind: Kind, compiler: str) -> None:
    others = [other for other, _, _ in PLANTED if other is not kind]
    found = [probed(other, repro_of(*MODEL, compiler=compiler)).kind for other in others]
    assert found == [Kind.PASS] * len(others)


def test_rows_that_depend_on_one_another_are_not_asked_about() -> None:
    verdict = probed(Kind.BATCH, repro_of(lambda x: (x - x.mean(0),), torch.randn(4, 8)))
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert "a row alone differs" in verdict.summary


@pytest.mark.parametrize(("compiler", "kind"), [("alone_is_wrong", Kind.BATCH), ("aot_eager", Kind.PASS)])
def test_a_batch_that_is_a_symbol_is_cut_wherever_it_occurs(compiler: str, kind: Kind) -> None:
    """The sizes of a static graph are numbers in its views: only eager with symbols can run a row alone."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 2, 4).sum(-1)

    captured = capture(model, torch.randn(6, 8), dynamic=True)[0]
    name = f"probing:{compiler}" if compiler == "alone_is_wrong" else compiler
    repro = Repro(
        captured.graph, captured.inputs, symbols=symbols_of(captured.graph), compiler=Compiler(name)
    )
    assert probed(Kind.BATCH, repro).kind is kind


def test_a_model_that_returns_its_own_buffer_is_not_asked_to_hold_it() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.seen.add_(x),)

    repro = Repro(torch.fx.symbolic_trace(Counting()), (torch.ones(3),), compiler=Compiler("aot_eager"))
    assert probed(Kind.HOLD, repro).kind is Kind.NOT_COMPARABLE


def test_gradients_are_held_too() -> None:
    repro = repro_of(lambda x: (x.sin().sum(),), torch.randn(4, requires_grad=True))
    assert probed(Kind.HOLD, repro).kind is Kind.PASS
