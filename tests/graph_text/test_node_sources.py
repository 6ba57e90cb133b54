"""Every node says which line and module of the user's it comes from, also after the way through text."""

from __future__ import annotations

import itertools

import pytest
import torch
from capturing import capture
from hypothesis import example, given
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule, Node
from torch.nn import Linear, Module, ModuleDict, ModuleList, ReLU, Sequential

from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.graph_text.source_lines import module_of, source_of


class Layer(Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = Linear(4, 4)
        self.tail = Sequential(Linear(4, 4), ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.fc(x).sin())


class Encoder(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = ModuleList([Layer(), Layer()])
        self.heads = ModuleDict({"a b": Linear(4, 4)})
        self.listed = [Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.listed[0](self.heads["a b"](x)).tanh()


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x).cos()


MODULES = {
    "encoder.layers.0.fc",
    "encoder.layers.0",
    "encoder.layers.0.tail.0",
    "encoder.layers.0.tail.1",
    "encoder.layers.1.fc",
    "encoder.layers.1",
    "encoder.layers.1.tail.0",
    "encoder.layers.1.tail.1",
    "encoder.heads.a_b",
    "encoder.listed.0",
    "encoder",
    "",
}
SHARED_MODEL = Model()


def modules_of(graph: GraphModule) -> list[str]:
    return [module_of(node) for node in graph.graph.nodes]


def read_back(graph: GraphModule) -> GraphModule:
    written = write_graph(graph)
    return read_graph(written.text, written.constants)


def test_every_graph_on_the_way_knows_the_modules_of_the_user() -> None:
    graphs = {
        item.place: item.graph
        for item in capture(Model(), torch.ones(2, 4, requires_grad=True), backward=True)
    }
    assert set(graphs) == {"dynamo", "forward", "backward"}
    for graph in graphs.values():
        assert set(modules_of(graph)) == MODULES
        again = read_back(graph)
        assert modules_of(again) == modules_of(graph)
        assert modules_of(read_back(again)) == modules_of(graph)
        calls = [node.name for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
        before = {node.name: source_of(node) for node in graph.graph.nodes}
        after = {node.name: source_of(node) for node in again.graph.nodes}
        assert [before[name] for name in calls] == [after[name] for name in calls]


def test_a_graph_that_was_read_hands_its_modules_on_to_the_compiler() -> None:
    (found,) = (item for item in capture(Model(), torch.ones(2, 4)) if item.place == "dynamo")
    loaded = read_back(found.graph)
    traced = [item.graph for item in capture(loaded, *found.inputs) if item.place == "forward"]
    assert traced
    assert {module_of(node) for node in traced[0].graph.nodes} == MODULES


def test_an_exported_graph_knows_its_modules() -> None:
    program = torch.export.export(Sequential(Layer(), ReLU()), (torch.ones(2, 4),))
    for graph in (program.graph_module, program.run_decompositions().graph_module):
        assert set(modules_of(graph)) == {"", "0", "0.fc", "0.tail.0", "0.tail.1", "1"}
        assert modules_of(read_back(graph)) == modules_of(graph)


def _calls_the_model(x: torch.Tensor) -> torch.Tensor:
    return SHARED_MODEL.encoder(x) + 1


class _Trainer:
    def __init__(self) -> None:
        self.net = Linear(4, 4)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def _given_a_model(x: torch.Tensor, net: Module) -> torch.Tensor:
    return net(x)


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        (_calls_the_model, (), "SHARED_MODEL.encoder"),
        (_Trainer().step, (), "net"),
        (_given_a_model, (Linear(4, 4),), "net"),
        (Linear(4, 4), (), ""),
        (Sequential(Linear(4, 4)), (), "0"),
    ],
)
def test_the_path_is_what_the_user_would_write(
    function: object, args: tuple[object, ...], wanted: str
) -> None:
    (graph,) = (item.graph for item in capture(function, torch.ones(2, 4), *args) if item.place == "dynamo")  # type: ignore[arg-type]
    assert wanted in modules_of(graph)


def test_the_comment_is_written_only_where_it_changes() -> None:
    (graph,) = (item.graph for item in capture(Model(), torch.ones(2, 4)) if item.place == "forward")
    comments = [line for line in write_graph(graph).text.splitlines() if line.strip().startswith("# test_")]
    assert any(" of encoder.layers.0: " in comment for comment in comments)
    assert all(a != b for a, b in itertools.pairwise(comments))


def _node(path: str, trace: str | None) -> Node:
    graph = Graph()
    node = graph.call_function(torch.sin, (graph.placeholder("x"),))
    node.meta["nn_module_stack"] = {"0": (path, Module)}
    if trace is not None:
        node.meta["stack_trace"] = trace
    graph.output(node)
    return node


def _traces() -> st.SearchStrategy[str]:
    code = st.text().map(lambda text: text.replace("\n", " "))
    return code.map(lambda text: f'File "/home/me/model.py", line 3, in forward\n    {text}')


@given(st.text(), st.none() | _traces())
@example("L['self'].heads['a: b'].x[0]", None)
@example("L['self']._modules['encoder']._orig_mod.layers[3].norm", None)
@example("a of b: c", 'File "m.py", line 1, in f\n    of b: c')
def test_whatever_a_path_says_it_reads_back_the_same(path: str, trace: str | None) -> None:
    node = _node(path, trace)
    module, source = module_of(node), source_of(node)
    (again,) = (
        other for other in read_back(GraphModule({}, node.graph)).graph.nodes if other.op == "call_function"
    )
    assert (module_of(again), source_of(again)) == (module, source)


def test_dynamos_spelling_becomes_the_users() -> None:
    assert (
        module_of(_node("L['self']._modules['encoder']._orig_mod.layers[3].norm", None))
        == "encoder.layers.3.norm"
    )


def test_a_text_from_before_modules_were_kept_still_reads() -> None:
    text = """# torchrepro graph 1. Data in the shape of Python: it is parsed, never executed.
class Graph:
    def forward(self, x):
        # model.py:12 in forward: y = self.fc(x)
        y = torch.sin(x)
        return (y,)
"""
    (node,) = (node for node in read_graph(text, {}).graph.nodes if node.op == "call_function")
    assert (source_of(node), module_of(node)) == ("model.py:12 in forward: y = self.fc(x)", "")
