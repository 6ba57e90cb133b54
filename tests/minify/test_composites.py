"""Composite ops are opened, and the guilty op inside is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from synthetic import problem_of, targets, traced
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from torchrepro.edit.composites import expanded_everywhere
from torchrepro.minify.order import size_of
from torchrepro.minify.passes.nested import open_composites
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
W, B = torch.rand(8), torch.rand(8)

COMPOSITES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (8,), w, b), (X, W, B)),
    "gelu": (lambda x: functional.gelu(x), (X,)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    # Values of another width: no fused kernel takes them.
    "attention": (lambda q, v: functional.scaled_dot_product_attention(q, q, v), (X[None, :, :6], X[None])),
    "cross_entropy": (lambda x, y: functional.cross_entropy(x, y), (X, torch.tensor([1, 0, 7, 2]))),
    "mse_loss": (lambda x, w: functional.mse_loss(x, w), (X, X + 1)),
    "batch_norm": (lambda x, w, b: functional.batch_norm(x, w, b), (X, W, B)),
    # The fused attention in it is random only with dropout.
    "multi-head attention": (
        lambda q, w, v: functional.multi_head_attention_forward(
            *(q, q, q, 8, 2, w, None, None, None, False, 0.0, v, None), need_weights=False
        )[0],
        (X, torch.rand(24, 8), torch.rand(8, 8)),
    ),
    # These write to what they have computed.
    "rms_norm": (lambda x, w: functional.rms_norm(x, (8,), w), (X, W)),
    "gru_cell": (lambda x, y, w, v: torch.gru_cell(x, y, w, v), (X, X, torch.ones(24, 8), torch.ones(24, 8))),
    "var_mean": (lambda x: torch.var_mean(x, 1)[0], (X,)),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_an_opened_op_computes_the_same(name: str) -> None:
    function, inputs = COMPOSITES[name]
    repro = traced(function, *inputs)
    opened = expanded_everywhere(repro)
    for each in opened:
        assert size_of(each).ops > 1
        torch.testing.assert_close(each.graph(*inputs), repro.graph(*inputs))
    if name not in ("var_mean",):
        assert opened


def test_what_an_op_is_made_of_is_written_as_a_person_would() -> None:
    function, inputs = COMPOSITES["gelu"]
    (opened,) = expanded_everywhere(traced(function, *inputs))
    assert targets(opened) == ["mul", "mul", "erf", "add", "mul"]
    assert "torch.ops" not in opened.graph.code


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x),
        lambda x: functional.dropout(x, 0.5),
        lambda x: x.clone().add_(1),
        lambda x: x.chunk(2)[1],
    ],
)
def test_what_is_one_op_or_random_or_writes_stays_closed(function: Callable[..., Any]) -> None:
    problem = problem_of(traced(function, X), lambda repro: True, Kind.COMPILE_ERROR)
    open_composites(problem)
    assert problem.queries.asked == 0


def fails_with(name: str) -> Callable[[Repro], bool]:
    """As a compiler does that takes ops apart before it stumbles over one of them."""

    def fails(repro: Repro) -> bool:
        opened = expanded_everywhere(repro)
        return name in targets(opened[0] if opened else repro)

    return fails


@pytest.mark.parametrize(
    ("composite", "guilty"),
    [
        ("layer_norm", "rsqrt"),
        ("rms_norm", "rsqrt"),
        ("gru_cell", "sigmoid"),
        ("gelu", "erf"),
        ("softmax", "exp"),
        ("mse_loss", "pow"),
    ],
)
def test_the_guilty_op_inside_takes_the_place_of_the_composite(composite: str, guilty: str) -> None:
    function, inputs = COMPOSITES[composite]
    problem = problem_of(traced(function, *inputs), fails_with(guilty), Kind.COMPILE_ERROR)
    open_composites(problem)
    assert targets(problem.best) == [guilty]
    assert len(problem.best.inputs) == 1
    assert problem.queries.asked <= 6


def test_a_composite_that_is_guilty_itself_costs_one_query() -> None:
    function, inputs = COMPOSITES["gelu"]
    problem = problem_of(traced(function, *inputs), lambda repro: "gelu" in targets(repro))
    open_composites(problem)
    assert targets(problem.best) == ["gelu"]
    assert problem.queries.asked == 1


def test_ops_of_aten_are_opened_too() -> None:
    graph = make_fx(lambda x: torch.ops.aten.gelu(x))(X)
    (opened,) = expanded_everywhere(Repro(graph, (X,), Place.AFTER_AOT))
    assert "torch.ops.aten.erf.default" in opened.graph.code
    torch.testing.assert_close(opened.graph(X), graph(X))
