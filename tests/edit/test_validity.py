"""A candidate is rejected without being run only if eager would surely raise; asking changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, symbolic_trace

from torchrepro.edit.validity import why_invalid
from torchrepro.nouns.repro import Ambient, Place, Repro


def graph_of(build: Callable[..., Any], *inputs: Any, root: Any = None, place: Any = None) -> Repro:
    """A graph that `build(graph, *placeholders)` makes."""
    graph = Graph()
    result = build(graph, *[graph.placeholder(f"x{index}") for index in range(len(inputs))])
    graph.output(result)
    module = GraphModule(root or torch.nn.Module(), graph)
    return Repro(module, inputs, place=place or Place.AFTER_CAPTURE)


def calls(function: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda graph, *operands: graph.call_function(function, operands, kwargs)


ATEN = torch.ops.aten


def method(name: str, *args: Any) -> Callable[..., Any]:
    return lambda graph, operand: graph.call_method(name, (operand, *args))


HOPELESS: dict[str, Repro] = {
    "sizes that do not fit": graph_of(calls(torch.mm), torch.ones(2, 3), torch.ones(2, 3)),
    "after AOT": graph_of(calls(ATEN.mm.default), torch.ones(2, 3), torch.ones(2, 3), place=Place.AFTER_AOT),
    "dtypes that do not fit": graph_of(calls(torch.nn.functional.one_hot), torch.ones(2)),
    "a view that does not fit": graph_of(method("view", 7), torch.ones(2, 3)),
    "an argument that does not exist": graph_of(calls(torch.relu, slope=3), torch.ones(2)),
    "a dimension that does not exist": graph_of(calls(torch.sum, dim=4), torch.ones(2)),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_eager_surely_rejects_is_rejected(name: str) -> None:
    repro = HOPELESS[name]
    with pytest.raises((RuntimeError, TypeError, IndexError, AttributeError, ValueError)):
        torch.fx.Interpreter(repro.graph).run(*repro.inputs)
    assert why_invalid(repro)


def test_inputs_that_do_not_fit_the_graph_are_rejected() -> None:
    graph = symbolic_trace(lambda x, y: x + y)
    for count in (0, 1, 3):
        assert "inputs" in why_invalid(Repro(graph, (torch.ones(2),) * count))
    with_default = symbolic_trace(lambda x, y=2: x + y)
    assert why_invalid(Repro(with_default, (torch.ones(2),))) == ""


def test_what_is_no_graph_is_rejected() -> None:
    graph = Graph()
    graph.call_function(torch.relu, (graph.placeholder("x"),))
    assert why_invalid(Repro(GraphModule(torch.nn.Module(), graph), (torch.ones(2),)))
    wrong = symbolic_trace(lambda x: torch.relu(x) + 1)
    first = next(node for node in wrong.graph.nodes if node.target is torch.relu)
    first.append(next(iter(wrong.graph.nodes)))  # an input after its reader
    assert "ill-formed" in why_invalid(Repro(wrong, (torch.ones(2),)))


def users_function(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("code of the user was run")


@torch.library.custom_op("validity_test::strict", mutates_args=())
def strict_op(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@strict_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the fake kernel is wrong")


@torch.library.custom_op("validity_test::no_fake", mutates_args=())
def op_without_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)


def cond(graph: Graph, x: Any) -> Any:
    true, false = graph.get_attr("true"), graph.get_attr("false")
    return graph.call_function(torch.ops.higher_order.cond, (True, true, false, (x,)))


def branches() -> torch.nn.Module:
    root = torch.nn.Module()
    root.add_module("true", symbolic_trace(lambda x: (x.sin(),)))
    root.add_module("false", symbolic_trace(lambda x: (x.cos(),)))
    return root


def index_with_nonzero(graph: Graph, x: Any) -> Any:
    found = graph.call_function(torch.nonzero, (x,))
    return graph.call_method("view", (found, 3, 2))


FINE: dict[str, Repro] = {
    "plain": graph_of(calls(torch.mm), torch.ones(2, 3), torch.ones(3, 2)),
    "a size that depends on data": graph_of(calls(torch.nonzero), torch.ones(3)),
    "more that depends on it": graph_of(index_with_nonzero, torch.eye(3)),
    "a number that depends on data": graph_of(method("item"), torch.ones(1)),
    "a custom op without a fake kernel": graph_of(calls(op_without_fake._opoverload), torch.ones(2)),
    "a custom op with a wrong one": graph_of(calls(strict_op._opoverload), torch.ones(2)),
    "a function of the user": graph_of(calls(users_function), torch.ones(2)),
    "a higher-order op": graph_of(cond, torch.ones(2), root=branches()),
    "sparse": graph_of(calls(torch.sparse.mm), torch.eye(3).to_sparse(), torch.eye(3)),
    "complex": graph_of(method("conj"), torch.ones(2, dtype=torch.complex64)),
    "data": graph_of(method("tolist"), torch.ones(2)),
    "half types": graph_of(calls(torch.mm), torch.ones(2, 2).half(), torch.ones(2, 2).half()),
    "an input that is no tensor": graph_of(calls(torch.add), torch.ones(2), 3),
    "None": graph_of(calls(torch.nn.functional.linear), torch.ones(2, 2), torch.ones(2, 2), None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FINE)
def test_there_is_nothing_against_what_may_run(name: str) -> None:
    assert why_invalid(FINE[name]) == ""


def test_a_call_of_the_users_code_is_not_run() -> None:
    repro = graph_of(calls(users_function), torch.ones(2), place=Place.BEFORE_CAPTURE)
    assert why_invalid(repro) == ""


def state_of_process() -> list[Any]:
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.get_rng_state().tolist(),
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch.utils._python_dispatch._get_current_dispatch_mode() is None,
    ]


def opens_regions(graph: Graph, x: Any) -> Any:
    graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.float16, True, False))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_function(torch.autograd.grad_mode._enter_inference_mode, (True,))
    graph.call_function(torch.rand, (3,))
    graph.call_function(torch._C._functorch._vmap_increment_nesting, (3, "error"))
    return graph.call_function(torch.mm, (x, x))


@pytest.mark.parametrize("shape", [(2, 3), (3, 3)])
def test_the_process_is_left_as_it_was_even_midway(shape: tuple[int, int]) -> None:
    before = state_of_process()
    repro = graph_of(opens_regions, torch.ones(shape))
    assert bool(why_invalid(repro)) == (shape == (2, 3))
    assert state_of_process() == before
    odd = Ambient(default_dtype="float64", grad_enabled=False, inference_mode=True)
    why_invalid(Repro(repro.graph, repro.inputs, ambient=odd))
    assert state_of_process() == before


def test_closed_regions_are_not_closed_twice() -> None:
    def build(graph: Graph, x: Any) -> Any:
        region = graph.call_function(
            torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None)
        )
        product = graph.call_function(torch.mm, (x, x))
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (region,))
        return graph.call_function(torch.mm, (product, x))

    before = state_of_process()
    assert why_invalid(graph_of(build, torch.ones(3, 3))) == ""
    assert state_of_process() == before


def test_tensors_are_not_written_to_and_count_no_version() -> None:
    root = torch.nn.Module()
    root.register_buffer("count", torch.zeros(2))
    root.add_module("norm", torch.nn.BatchNorm1d(2))

    def build(graph: Graph, x: Any) -> Any:
        graph.call_method("add_", (graph.get_attr("count"), 1))
        graph.call_method("mul_", (x, 2))
        return graph.call_module("norm", (x,))

    repro = graph_of(build, torch.ones(3, 2), root=root)
    tensors = [*repro.inputs, *repro.graph.state_dict(keep_vars=True).values()]
    before = [(tensor._version, tensor.clone()) for tensor in tensors]
    assert why_invalid(repro) == ""
    for tensor, (version, value) in zip(tensors, before, strict=True):
        assert tensor._version == version
        assert torch.equal(tensor, value)


def test_generators_that_are_given_stay_where_they_are() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    repro = graph_of(lambda g, own: g.call_function(torch.rand, (3,), {"generator": own}), generator)
    why_invalid(repro)
    assert torch.equal(generator.get_state(), before)


def test_a_graph_of_900_nodes_takes_less_than_half_a_second() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for number in range(300):
            x = torch.relu(x.view(4, -1)) + number
        return x

    repro = Repro(symbolic_trace(chain), (torch.ones(4, 64),))
    why_invalid(repro)
    started = time.process_time()
    assert why_invalid(repro) == ""
    assert time.process_time() - started < 1.5  # 0.15 s where nothing else runs
