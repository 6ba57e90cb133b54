"""The picture of a graph: names, what they read, shapes, modules and sources, and nothing is run for it."""

from __future__ import annotations

import pytest
import torch

from torchrepro.graph_text.printer import write_graph
from torchrepro.graph_text.source_lines import module_of, source_of
from torchrepro.locate.watched_graph import op_of
from torchrepro.nouns.errors import GraphTextError
from torchrepro.report.contents import Node, Picture
from torchrepro.report.graph_picture import picture_of

TEXT = """\
# torchrepro graph 1. Data in the shape of Python: it is parsed, never executed.
class Graph:
    self.w = parameter("w")
    class body:
        def forward(self, a: f32[2]):
            double: f32[2] = a * 2
            return (double,)
    def forward(
        self,
        n: sym(2*s0),
        flag: b8[()],
        x: f32[s0, 8].stride(1, s0) = arg("L_x_"),
    ):
        # model.py:12 in forward of encoder.norm: y = self.norm(x)
        w: f32[8].on("cuda:0") = self.w
        y: (f32[8], i64[8],) = torch.ops.aten.max.dim(x, 0)
        first: f32[8] = y[0]
        # source unknown, in encoder.head
        second: bf16[8, n] = first.add_(w, alpha=2)
        # source unknown
        third = named("while", user("my.module:call")(second, self.body))
        fourth: c64[8] = third <= first
        return (fourth, second)
"""


def nodes_of(picture: Picture) -> dict[str, Node]:
    return {node.name: node for node in picture.nodes}


def test_a_graph_is_drawn_with_what_its_text_tells() -> None:
    nodes = nodes_of(picture_of("graph", TEXT, guilty="first"))
    assert (nodes["x"].kind, nodes["x"].shape) == ("input", "float32[s0, 8]")
    assert (nodes["n"].shape, nodes["flag"].shape) == ("2 * s0", "bool[]")
    assert (nodes["w"].kind, nodes["w"].op, nodes["w"].shape) == ("constant", "w", "float32[8] cuda:0")
    assert nodes["y"].op == "aten.max.dim"
    assert nodes["y"].shape == "(float32[8], int64[8])"
    assert nodes["y"].source == "model.py:12 in forward: y = self.norm(x)"
    assert nodes["y"].module == "encoder.norm"
    assert (nodes["first"].op, nodes["first"].guilty) == ("operator.getitem", True)
    assert (nodes["second"].op, nodes["second"].inputs) == (".add_", ("first", "w"))
    assert (nodes["second"].module, nodes["second"].source) == ("encoder.head", "")
    assert (nodes["while"].op, nodes["while"].module) == ("my.module:call", "")
    assert nodes["fourth"].inputs == ("while", "first")
    assert (nodes["output"].kind, nodes["output"].inputs) == ("output", ("fourth", "second"))
    assert [node.name for node in picture_of("graph", TEXT).nodes if node.guilty] == []


def test_a_nested_graph_is_drawn_under_its_name() -> None:
    nodes = nodes_of(picture_of("graph", TEXT))
    assert (nodes["body.double"].op, nodes["body.double"].inputs) == ("operator.mul", ("body.a",))
    assert nodes["body.double"].module == "body"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.fc(x)) @ x.t()
        return -(y[0] * 2).clamp_(max=1) / self.scale.size(0)


def test_it_says_what_the_graph_itself_would_say() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch.compile(Block(), backend=backend)(torch.ones(4, 4))
    drawn = nodes_of(picture_of("graph", write_graph(graphs[0]).text))
    assert set(drawn) == {node.name for node in graphs[0].graph.nodes}
    for node in graphs[0].graph.nodes:
        assert drawn[node.name].inputs == tuple(read.name for read in node.all_input_nodes)
        if node.op.startswith("call"):
            found = drawn[node.name]
            wanted = (op_of(node), module_of(node), source_of(node))
            assert (found.op, found.module, found.source) == wanted


@pytest.mark.parametrize("text", ["", "class Graph:\n  def", "x = 1", "class Graph:\n" + "(" * 5000])
def test_a_text_that_is_no_graph_is_one_clear_error(text: str) -> None:
    with pytest.raises(GraphTextError):
        picture_of("graph", text)
