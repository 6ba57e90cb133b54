"""Graphs as compilers make them survive the way through text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from capturing import Captured, capture
from graph_equality import first_difference
from torch.fx.experimental.proxy_tensor import make_fx
from zoo import HUGGING_FACE, PLAIN

from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph


def assert_survives(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    written = write_graph(graph)
    again = read_graph(written.text, written.constants)
    assert first_difference(graph, again) is None
    assert write_graph(again).text == written.text
    return again


def assert_all_survive(captured: list[Captured], *places: str) -> None:
    assert {item.place for item in captured} >= set(places)
    for item in captured:
        assert_survives(item.graph)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("cnn", "integer", "in_place_state") else pytest.mark.slow)
        for name in PLAIN
        if name != "lstm"  # Dynamo breaks the graph at nn.LSTM
    ],
)
def test_every_graph_of_a_plain_model_survives(name: str) -> None:
    model, args, kwargs = PLAIN[name]()
    backward = any(True for _ in model.parameters())
    places = ("forward", "backward") if backward else ("inference",)
    assert_all_survive(capture(model, *args, kwargs=kwargs, backward=backward), "dynamo", *places)


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_every_graph_of_a_hugging_face_model_survives(name: str) -> None:
    model, args, kwargs = HUGGING_FACE[name]()
    captured = capture(model, *args, kwargs=kwargs, backward=True, inductor_decompositions=True)
    assert_all_survive(captured, "dynamo", "forward", "backward")


@pytest.mark.parametrize(
    "name", ["mixer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "transformer"))]
)
def test_graphs_after_decomposition_survive(name: str) -> None:
    model, args, _ = PLAIN[name]()
    assert_all_survive(
        capture(model, *args, backward=True, inductor_decompositions=True), "forward", "backward"
    )


@pytest.mark.parametrize(
    "name",
    ["integer", "in_place_state", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "lstm"))],
)
def test_exported_graphs_survive(name: str) -> None:
    model, args, kwargs = PLAIN[name]()
    program = torch.export.export(model, args, kwargs)
    assert_survives(program.graph_module)
    assert_survives(program.run_decompositions().graph_module)


def test_an_exported_graph_with_dynamic_sizes_survives() -> None:
    model, args, _ = PLAIN["transformer"]()
    program = torch.export.export(model, args, dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert_survives(program.graph_module)


def test_a_graph_of_make_fx_with_symbolic_sizes_survives() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[0] * 2, x.shape[1]) + x.new_ones(1, x.shape[1])

    assert_survives(make_fx(function, tracing_mode="symbolic")(torch.randn(3, 5)))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0].cos()


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def _cond(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))


def _nested_cond(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: _cond(x) * 2, lambda x: x.cos(), (x,))


def _while_loop(x: torch.Tensor) -> Any:
    from torch._higher_order_ops import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))


def _scan(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, y: (carry + y, carry * y), torch.zeros(8), x)


def _map(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as map_

    return map_(lambda row, y: row + y, x, torch.ones(8))


def _flex_attention(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    query = x.view(1, 1, 4, 8).expand(1, 2, 4, 8)
    return flex_attention(query, query, query, score_mod=lambda s, b, h, i, j: s + (i - j))


def _checkpoint(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(lambda y: y.relu().sin(), x, use_reentrant=False)


def _modes(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = x @ x.t()
    with torch.no_grad():
        double = x * 2
    with torch.inference_mode():
        triple = x * 3
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        attention = torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])
    return product, double, triple, attention


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.add(x, x, out=y)
    y.mul_(2)
    y[0] = 3
    y[:, 1:3] += 1
    y[..., -1] = float("-inf")
    return y.view(-1)


def _families(x: torch.Tensor) -> Any:
    return (
        torch.linalg.svd(x).S,
        torch.fft.rfft(x),
        torch.special.erf(x),
        torch.einsum("ij,kj->ik", x, x),
        torch.split(x, 2),
        torch.max(x, dim=1),
        x.to(torch.float16, memory_format=torch.contiguous_format),
        x.mT,
        torch.tensor([1.0, 2.0, -0.0]),
        torch.nn.functional.dropout(x, 0.5),
        x.type(torch.float64),
    )


def _numpy(x: torch.Tensor) -> Any:
    array = x.numpy()
    return torch.from_numpy(np.sin(array) + np.linalg.norm(array) * array.reshape(4, 8)), array.T


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "cond in cond": _nested_cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map": _map,
    "flex_attention": _flex_attention,
    "invoke_subgraph": lambda x: _region(_region(x)),
    "autograd_function": lambda x: _Doubled.apply(x),
    "checkpoint": _checkpoint,
    "vmap": lambda x: torch.vmap(lambda row: row.sum() * 2)(x),
    "grad": lambda x: torch.func.grad(lambda y: y.sin().sum())(x),
    "jvp": lambda x: torch.func.jvp(lambda y: y.sin(), (x,), (x,)),
    "jacfwd": lambda x: torch.func.jacfwd(lambda y: y.sin())(x[0]),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda y: y.sin().sum()))(x),
    "modes": _modes,
    "in place": _in_place,
    "families": _families,
    "numpy": _numpy,
    "random": lambda x: torch.rand_like(x) + torch.randn(8) + torch.bernoulli(x.sigmoid()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_graph_of_a_function_survives(name: str) -> None:
    x = torch.randn(4, 8, requires_grad=name in ("autograd_function", "checkpoint"))
    assert_all_survive(capture(FUNCTIONS[name], x), "dynamo")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"flex_attention", "jacfwd", "scan"}))
def test_every_graph_of_a_function_with_dynamic_sizes_survives(name: str) -> None:
    x = torch.randn(4, 8, requires_grad=name in ("autograd_function", "checkpoint"))
    assert_all_survive(capture(FUNCTIONS[name], x, dynamic=True), "dynamo")


def test_sizes_known_only_at_run_time_survive() -> None:
    def function(x: torch.Tensor, count: torch.Tensor) -> Any:
        size = count.item()
        torch._check(size >= 0)
        torch._check(size <= 4)
        return x.nonzero() + 1, torch.zeros(size)

    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        captured = capture(function, torch.eye(3), torch.tensor(2))
    assert_all_survive(captured, "dynamo", "inference")


def test_a_generator_is_kept_as_a_constant() -> None:
    generator = torch.Generator().manual_seed(7)
    try:
        graph = make_fx(lambda x: x.bernoulli(0.5, generator=generator))(torch.ones(3))
    except NotImplementedError as refused:
        pytest.skip(f"make_fx of torch {torch.__version__} takes no generator: {refused}")
    assert any(isinstance(value, torch.Generator) for value in write_graph(graph).constants.values())
    assert_survives(graph)


def test_a_round_trip_computes_the_same() -> None:
    for item in capture(PLAIN["transformer"]()[0], torch.randn(2, 6, 16)):
        again = assert_survives(item.graph)
        expected, found = (graph(*item.inputs) for graph in (item.graph, again))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_text_reads_like_the_model() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + 1)[0]

    text = write_graph(capture(function, torch.randn(2, 3))[0].graph).text
    assert 'l_x_: f32[2, 3] = arg("L_x_")' in text
    assert "add: f32[2, 3] = l_x_ + 1" in text
    assert "relu: f32[2, 3] = torch.relu(add)" in text
    assert "test_graph_text_captured.py" in text
    assert "return torch.relu(x + 1)[0]" in text
