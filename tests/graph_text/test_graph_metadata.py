"""A graph read from text compiles like the one that was captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capturing import Captured, capture
from zoo import Transformer

from torchrepro.graph_text.annotations import note_of_node
from torchrepro.graph_text.metadata import fake_inputs, restore_metadata, symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.nouns.errors import GraphTextError
from torchrepro.nouns.repro import Symbol


def through_text(item: Captured) -> torch.fx.GraphModule:
    written = write_graph(item.graph)
    graph = read_graph(written.text, written.constants)
    restore_metadata(graph, item.inputs, symbols_of(item.graph))
    return graph


def graph_modules(graph: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    return [found for found in graph.modules() if isinstance(found, torch.fx.GraphModule)]


def assert_metadata_restored(item: Captured) -> None:
    restored = through_text(item)
    for before, after in zip(graph_modules(item.graph), graph_modules(restored), strict=True):
        for old, new in zip(before.graph.nodes, after.graph.nodes, strict=True):
            if "val" in old.meta and old.op != "output":
                assert note_of_node(new) == note_of_node(old), old.name


def adding_one(parameters: str) -> torch.fx.GraphModule:
    lines = (
        "class Graph:",
        f"    def forward(self, {parameters}):",
        "        y = x + 1",
        "        return (y,)",
    )
    return read_graph("\n".join(lines), {})


def clones(inputs: tuple[Any, ...]) -> list[Any]:
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in inputs]


def assert_compiles_the_same(item: Captured) -> None:
    from torch._inductor.compile_fx import compile_fx_inner

    restored = through_text(item)
    with torch.no_grad():
        expected = torch.fx.Interpreter(item.graph).run(*clones(item.inputs))
        compiled = compile_fx_inner(restored, fake_inputs(restored), is_backward=item.place == "backward")
        found = compiled(clones(item.inputs))
    pairs = [(a, b) for a, b in zip(expected, found, strict=True) if isinstance(a, torch.Tensor)]
    assert pairs
    for one, other in pairs:
        torch.testing.assert_close(other, one, equal_nan=True)


def of_place(captured: list[Captured], place: str) -> Captured:
    return next(item for item in captured if item.place == place)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_node_gets_its_size_back(dynamic: bool) -> None:
    for item in capture(Transformer(layers=1), torch.randn(3, 6, 16), backward=True, dynamic=dynamic):
        assert_metadata_restored(item)


def test_nested_graphs_get_their_sizes_back() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))

    for item in capture(function, torch.randn(3, 5), dynamic=True):
        assert_metadata_restored(item)


def test_symbols_keep_their_value_and_range() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)[: x.shape[0]] * 2

    x = torch.randn(6, 5)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    item = of_place(capture(function, x), "inference")
    (symbol,) = symbols_of(item.graph)
    assert (symbol.hint, symbol.lower, symbol.upper, symbol.unbacked) == (6, 2, 64, False)
    assert symbols_of(through_text(item)) == (symbol,)


def test_a_static_input_stays_static() -> None:
    item = of_place(capture(lambda x: x.t() + 1, torch.randn(2, 3)), "inference")
    (value,) = fake_inputs(through_text(item))
    assert symbols_of(through_text(item)) == ()
    assert (tuple(value.shape), value.stride()) == ((2, 3), (3, 1))


def test_an_input_that_no_longer_fits_its_expression_is_taken_as_it_is() -> None:
    text = (
        "class Graph:\n    def forward(self, x: f32[s0, 2*s0]):\n        y = x.relu()\n        return (y,)\n"
    )
    graph = read_graph(text, {})
    restore_metadata(graph, [torch.randn(4, 5)])
    (value,) = fake_inputs(graph)
    assert isinstance(value.shape[0], torch.SymInt)
    assert value.shape[1] == 5
    restore_metadata(graph, [torch.randn(4, 8)])
    assert str(fake_inputs(graph)[0].shape[1]) == "2*s0"


def test_a_value_outside_the_recorded_range_wins_over_it() -> None:
    graph = adding_one("x: f32[s0]")
    restore_metadata(graph, [torch.randn(3)], [Symbol("s0", hint=9, lower=5, upper=10)])
    assert fake_inputs(graph)[0].shape[0].node.hint == 3


def test_a_size_that_became_one_is_no_obstacle() -> None:
    graph = adding_one("x: f32[s3]")
    restore_metadata(graph, [torch.randn(1)], [Symbol("s3", hint=4, lower=2)])
    assert fake_inputs(graph)[0].shape[0] == 1


def test_the_wrong_number_of_inputs_is_an_error() -> None:
    graph = read_graph("class Graph:\n    def forward(self, x):\n        return (x,)\n", {})
    with pytest.raises(GraphTextError, match="takes 1 inputs and got 2"):
        restore_metadata(graph, [1, 2])


def test_modes_that_a_failing_graph_sets_do_not_leak() -> None:
    lines = ("a = torch._C._set_grad_enabled(False)", "b = x.view(7)", "return (b,)")
    text = "class Graph:\n    def forward(self, x):\n" + "".join(f"        {line}\n" for line in lines)
    with pytest.raises(RuntimeError):
        restore_metadata(read_graph(text, {}), [torch.randn(3)])
    assert torch.is_grad_enabled()


def test_an_input_of_another_dtype_than_the_text_says_wins() -> None:
    graph = adding_one("x: f32[s0]")
    restore_metadata(graph, [torch.randn(3, dtype=torch.float64)])
    assert [node.meta["val"].dtype for node in graph.graph.nodes if "val" in node.meta] == [torch.float64] * 2


def test_sizes_without_a_value_keep_their_names() -> None:
    graph = adding_one("n: sym(u3), x: f32[u3, 2]")
    restore_metadata(graph, [4, torch.randn(4, 2)], [Symbol("u3", unbacked=True, lower=0, upper=9)])
    assert [str(value) for value in (fake_inputs(graph)[0], fake_inputs(graph)[1].shape[0])] == ["u3", "u3"]
    assert symbols_of(graph) == (Symbol("u3", unbacked=True, lower=0, upper=9),)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_dynamic_transformer_compiles_the_same(place: str) -> None:
    captured = capture(
        Transformer(layers=1),
        torch.randn(3, 6, 16),
        backward=True,
        dynamic=True,
        inductor_decompositions=True,
    )
    assert_compiles_the_same(of_place(captured, place))


@pytest.mark.slow
def test_a_graph_with_nested_graphs_compiles_the_same() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))

    captured = capture(function, torch.randn(3, 5), dynamic=True, inductor_decompositions=True)
    assert_compiles_the_same(of_place(captured, "inference"))


@pytest.mark.slow
def test_sizes_known_only_at_run_time_compile_the_same() -> None:
    def function(x: torch.Tensor, count: torch.Tensor) -> Any:
        size = count.item()
        torch._check(size >= 0)
        torch._check(size <= 4)
        return x.nonzero() * 2, torch.ones(size) + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        captured = capture(function, torch.eye(3), torch.tensor(2), inductor_decompositions=True)
    assert_compiles_the_same(of_place(captured, "inference"))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_captured_graph_goes_through_the_whole_of_inductor(dynamic: bool) -> None:
    from torch._inductor.compile_fx import compile_fx

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    item = of_place(capture(model, torch.randn(3, 8), dynamic=dynamic), "dynamo")
    restored = through_text(item)
    expected = item.graph(*item.inputs)
    found = compile_fx(restored, fake_inputs(restored))(*item.inputs)
    torch.testing.assert_close(tuple(found), tuple(expected))
    assert any(value.requires_grad for value in found)
