"""What the order counts beside nodes and elements."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from capturing import capture
from synthetic import traced
from test_graph_text_captured import FUNCTIONS

from torchrepro.edit.cost import asks_for_gradients, cost_of, count_runs
from torchrepro.minify.order import size_of
from torchrepro.nouns.repro import Ambient, Compiler, Place


def test_a_nested_graph_counts_once_for_each_call() -> None:
    (captured, *_) = capture(FUNCTIONS["invoke_subgraph"], torch.rand(4, 8))
    # Two calls, each with the op that takes its result apart and the two ops of the graph.
    assert count_runs(captured.graph) == 2 * (1 + 1 + 2)


@pytest.mark.parametrize(
    ("plainer", "other"),
    [
        (0, 1),
        (1, -3),
        (2, 100),
        (1.0, 0.0),
        (0.0, 0.5),
        (0.5, 0.3535),
        ([0], [0, 1]),
        (slice(1), slice(2, 9)),
    ],
)
def test_plainer_numbers_cost_less(plainer: object, other: object) -> None:
    assert cost_of(plainer) < cost_of(other)


def test_gradients_count_where_they_are_computed() -> None:
    repro = traced(lambda x: x.relu(), torch.ones(2, requires_grad=True))
    assert asks_for_gradients(repro) == 2
    assert asks_for_gradients(replace(repro, backward=False)) == 1
    assert asks_for_gradients(replace(repro, ambient=Ambient(grad_enabled=False))) == 1
    assert asks_for_gradients(replace(repro, place=Place.AFTER_AOT)) == 0
    assert asks_for_gradients(traced(lambda x: x.relu(), torch.ones(2))) == 0


@pytest.mark.parametrize(
    "more",
    [
        {"compiler": Compiler(fullgraph=True)},
        {"ambient": Ambient(threads=2)},
        {"ambient": Ambient(environ={"OMP_NUM_THREADS": "1"})},
        {"tolerance": 0.1},
        {"earlier": ((torch.ones(2),),)},
    ],
)
def test_whatever_a_reader_has_to_set_up_makes_a_repro_larger(more: dict[str, object]) -> None:
    repro = traced(lambda x: x.relu(), torch.ones(2))
    assert size_of(repro) < size_of(replace(repro, **more))  # type: ignore[arg-type]
