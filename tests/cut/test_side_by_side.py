"""Copies side by side: one graph that computes all variations, and a verdict that is taken apart again."""

from __future__ import annotations

from typing import Any

import torch

from torchrepro.cut.batches import can_be_joined, joined
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict


def traced(function: Any, *inputs: Any) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), inputs)


def in_place(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.add_(1)
    return x * y, y.sum()


def test_each_copy_computes_what_it_computed_alone() -> None:
    shared = torch.ones(3)
    repros = [traced(in_place, shared, torch.full((3,), float(n))) for n in range(3)]
    whole = joined(repros)
    results = whole.repro.graph(*whole.repro.inputs)
    assert [float(result.reshape(-1)[0]) for result in results] == [0, 0, 2, 3, 4, 6]
    assert whole.outputs == (0, 0, 1, 1, 2, 2)
    assert whole.inputs == (0, 0, 1, 1, 2, 2)
    assert torch.equal(shared, torch.ones(3)), "copies have inputs of their own"


def test_a_verdict_is_taken_apart() -> None:
    whole = joined([traced(in_place, torch.ones(2), torch.ones(2)) for _ in range(3)])
    leaves = [LeafComparison(f"out[{place}]") for place in range(6)]
    leaves[2] = LeafComparison("out[2]", Difference.VALUE)
    leaves.append(LeafComparison("inputs[4]", Difference.NON_FINITE))
    leaves.append(LeafComparison('grad["inputs[0]"]'))
    verdicts = whole.verdicts(Verdict(Kind.NON_FINITE, comparison=Comparison(tuple(leaves))))
    assert verdicts is not None
    assert [verdict.kind for verdict in verdicts] == [Kind.PASS, Kind.MISMATCH, Kind.NON_FINITE]


def test_an_error_is_of_all_and_of_none() -> None:
    whole = joined([traced(in_place, torch.ones(2), torch.ones(2)) for _ in range(2)])
    assert whole.verdicts(Verdict(Kind.COMPILE_ERROR)) is None


def test_the_judge_names_leaves_as_expected_here() -> None:
    def computed(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.sin(x),)

    from torchrepro.nouns.repro import Compiler

    repros = [traced(computed, torch.ones(size, requires_grad=True)) for size in (1, 2, 3)]
    whole = joined(repros)
    verdict = judge_repro(Repro(whole.repro.graph, whole.repro.inputs, compiler=Compiler("eager")))
    verdicts = whole.verdicts(verdict)
    assert verdicts is not None
    assert [len(own.comparison.leaves) for own in verdicts if own.comparison] == [3, 3, 3]


def test_what_cannot_stand_together() -> None:
    def nested(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a": x + 1}

    assert can_be_joined(traced(in_place, torch.ones(2), torch.ones(2)))
    assert not can_be_joined(traced(nested, torch.ones(2)))
    call = traced(in_place, torch.ones(2), torch.ones(2))
    assert not can_be_joined(Repro(call.graph, call.inputs, Place.BEFORE_CAPTURE))
