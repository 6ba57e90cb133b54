"""The graphs of a program are numbered: graph breaks, recompilations and backward are told apart."""

from __future__ import annotations

from typing import Any

import torch

from torchrepro.execute.record_graphs import Origins
from torchrepro.nouns.repro import Origin


def graphs_of(program: Any) -> list[Origin]:
    """The origins of all graphs that a program compiles, as they come."""
    found: list[Origin] = []
    origins = Origins()

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(origins.of(graph))
        return graph.forward

    torch._dynamo.reset()
    program(lambda function: torch.compile(function, backend=backend))
    return found


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def test_graph_breaks_make_graphs_of_their_own_and_other_sizes_compile_one_again() -> None:
    def program(compiled: Any) -> None:
        function = compiled(broken)
        function(torch.ones(3))
        function(torch.ones(3, 2))

    found = graphs_of(program)
    assert [origin.number for origin in found] == [0, 1, 2, 3]
    assert [origin.compilation for origin in found] == [0, 0, 1, 1]
    assert [origin.seen for origin in found] == [1, 2, 3, 4]
    assert found[0].source.endswith("in broken")
    assert str(found[2]) == "graph 2 of 3, compiled again (2. time)"


def test_what_aot_makes_of_a_graph_is_no_new_one() -> None:
    origins = Origins()
    found: list[Origin] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(origins.of(graph))
        found.append(origins.of(graph, below_aot=True))
        found.append(origins.of(graph, below_aot=True, backward=True))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x.sin(), backend=backend)(torch.ones(2))
    torch.compile(lambda x: x.cos(), backend=backend)(torch.ones(2))
    assert [origin.number for origin in found] == [0, 0, 0, 1, 1, 1]
    assert str(found[-1]) == "backward of graph 1 of 2"


def test_a_graph_that_no_program_is_known_for_is_numbered_all_the_same() -> None:
    origins, graph = Origins(), torch.fx.symbolic_trace(torch.nn.ReLU())
    assert [origins.of(graph, below_aot=True).number for _ in range(2)] == [0, 1]
    assert origins.of(graph).source == ""
