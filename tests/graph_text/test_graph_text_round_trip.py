"""Whatever a graph holds, text holds too: random graphs and literals, modules, names, constants."""

from __future__ import annotations

import keyword
import math
import operator
from typing import Any

import pytest
import torch
from graph_equality import first_difference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule

from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.nouns.errors import CannotSerialise


def module_of(graph: Graph, root: torch.nn.Module | None = None) -> GraphModule:
    """A module with this graph, whether or not FX can generate code for it."""
    module = GraphModule(root or torch.nn.Module(), Graph())
    for name, value in (root or torch.nn.Module()).__dict__.items():
        if name in ("_parameters", "_buffers", "_modules"):
            module.__dict__[name].update(value)
    try:
        module.graph = graph
    except (SyntaxError, NameError):
        module._graph = graph
    return module


def round_trip(module: GraphModule) -> GraphModule:
    written = write_graph(module)
    again = read_graph(written.text, written.constants)
    assert first_difference(module, again) is None
    assert write_graph(again).text == written.text
    return again


def round_trip_of_argument(value: Any) -> Any:
    graph = Graph()
    graph.output(graph.call_function(torch.add, (graph.placeholder("x"), value)))
    again = round_trip(module_of(graph))
    return next(node for node in again.graph.nodes if node.op == "call_function").args[1]


LITERALS = st.recursive(
    st.one_of(
        st.none(),
        st.just(...),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.complex_numbers(),
        st.text(),
        st.binary(),
        st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
        st.sampled_from(
            [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.qint8, torch.strided, torch.sparse_csr]
        ),
        st.sampled_from(
            [torch.contiguous_format, torch.channels_last, torch.per_tensor_affine, torch.Tensor]
        ),
        st.sampled_from(
            [torch.device("cpu"), torch.device("cuda"), torch.device("cuda:3"), torch.device("meta")]
        ),
        st.sampled_from(
            [torch.relu, torch.ops.aten.add.Tensor, torch.ops.aten.add, torch.ops.higher_order.cond]
        ),
        st.sampled_from([operator.add, math.sqrt, max, int, float, torch.nn.functional.gelu]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=8,
)


@given(LITERALS)
@settings(max_examples=250, deadline=None)
def test_any_argument_survives(value: Any) -> None:
    round_trip_of_argument(value)


@pytest.mark.parametrize("value", [-0.0, 5e-324, 0.1 + 0.2, math.inf, -math.inf, math.nan, 1e308, -1, 2**70])
def test_numbers_survive_exactly(value: float) -> None:
    found = round_trip_of_argument(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_tuples_and_lists_stay_what_they_are() -> None:
    found = round_trip_of_argument([(1,), [], (), [(2, [3])]])
    assert found == [(1,), [], (), [(2, [3])]]
    assert isinstance(found[0], tuple)
    assert isinstance(found[1], list)


def test_an_enum_of_torch_survives() -> None:
    assert round_trip_of_argument(torch.nn.attention.SDPBackend.MATH) is torch.nn.attention.SDPBackend.MATH


def test_reading_an_attribute_survives() -> None:
    graph = Graph()
    graph.output(graph.call_function(getattr, (graph.placeholder("x"), "T")))
    assert "= x.T\n" in write_graph(module_of(graph)).text
    round_trip(module_of(graph))


@pytest.mark.filterwarnings("ignore:Raw SymInt")
def test_a_symbolic_number_survives_as_its_expression() -> None:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    symbol = env.create_symbol(6, ConstantSource("size"))
    number = env.create_symintnode(2 * symbol + 1, hint=13)
    found = round_trip_of_argument([number, number > 3])
    assert str(found[0]) == str(number)
    assert found[0].node.hint == 13


def test_a_tensor_in_the_arguments_is_kept_once() -> None:
    tensor = torch.tensor([1.0, math.nan, -0.0])
    graph = Graph()
    first = graph.call_function(torch.add, (graph.placeholder("x"), tensor))
    graph.output(graph.call_function(torch.mul, (first, tensor)))
    written = write_graph(module_of(graph))
    assert list(written.constants.values()) == [tensor]
    again = read_graph(written.text, written.constants)
    assert torch.equal(again(torch.ones(3))[::2], torch.tensor([2.0, -0.0]))


def test_an_object_of_the_user_is_named_when_it_cannot_be_written() -> None:
    class Settings:
        pass

    with pytest.raises(CannotSerialise, match="Settings"):
        round_trip_of_argument(Settings())


FUNCTIONS = [
    (torch.add, 2),
    (torch.relu, 1),
    (torch.nn.functional.gelu, 1),
    (torch.ops.aten.mul.Tensor, 2),
    (torch.ops.aten.sum.dim_IntList, 2),
    (torch._C._nn.linear, 2),
    *(
        (function, 2)
        for function in (operator.add, operator.matmul, operator.lt, operator.getitem, operator.pow)
    ),
    *((function, 1) for function in (operator.neg, operator.not_, operator.invert)),
    (operator.iadd, 2),
    (operator.setitem, 3),
    (math.floor, 1),
    (max, 2),
    (torch.Tensor.add, 2),
    (torch.ops.higher_order.cond, 4),
]
NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True),
    st.sampled_from(
        ["torch", "operator", "self", "inf", "sym", "arg", "max", "named", "x_1", "f32", "Graph"]
    ),
).filter(lambda name: name.isascii() and name.isidentifier() and not keyword.iskeyword(name))


@st.composite
def graph_modules(draw: st.DrawFn, depth: int = 1) -> GraphModule:
    graph, root = Graph(), torch.nn.Module()
    nodes = []
    for number in range(draw(st.integers(0, 3))):
        default = (draw(LITERALS),) if draw(st.booleans()) else ()
        nodes.append(graph.create_node("placeholder", f"in_{number}", default, name=draw(NAMES)))
    for name, key in (("weight", "a"), ("layers.0.bias", "b")):
        if draw(st.booleans()):
            owner = root
            *path, last = name.split(".")
            for part in path:
                owner.add_module(part, torch.nn.Module())
                owner = owner.get_submodule(part)
            owner.register_buffer(last, torch.full((2,), float(ord(key))))
            nodes.append(graph.create_node("get_attr", name, name=draw(NAMES)))
    if depth and draw(st.booleans()):
        nested = draw(graph_modules(depth=depth - 1))
        for name in ("body", "again"):
            root.add_module(name, nested)
            nodes.append(graph.create_node("get_attr", name, name=draw(NAMES)))
    for _ in range(draw(st.integers(0, 6))):
        arguments = st.one_of(LITERALS, st.sampled_from(nodes)) if nodes else LITERALS
        arguments = st.one_of(
            arguments, st.lists(arguments, max_size=2), st.builds(slice, arguments, arguments)
        )
        if draw(st.booleans()) or not nodes:
            target, count = draw(st.sampled_from(FUNCTIONS))
            args = tuple(draw(arguments) for _ in range(count))
            kwargs = draw(st.dictionaries(st.sampled_from(["dim", "alpha", "out"]), arguments, max_size=2))
            node = graph.create_node("call_function", target, args, kwargs, name=draw(NAMES))
        else:
            args = (draw(st.sampled_from(nodes)), *draw(st.lists(arguments, max_size=2)))
            node = graph.create_node(
                "call_method", draw(st.sampled_from(["view", "add_"])), args, name=draw(NAMES)
            )
        if draw(st.integers(0, 9)) == 0:
            node.name = draw(NAMES)
        nodes.append(node)
    graph.create_node("output", "output", (draw(st.lists(st.sampled_from(nodes))) if nodes else None,))
    return module_of(graph, root)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # FX generates code for `None[None]` too
@given(graph_modules())
@settings(max_examples=100, deadline=None)
def test_any_graph_survives(module: GraphModule) -> None:
    round_trip(module)


class _Leaves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"),
            torch.nn.BatchNorm2d(4, momentum=None),
            torch.nn.ReLU(inplace=True),
            torch.nn.Dropout(0.3),
            torch.nn.AdaptiveAvgPool2d((None, 2)),
            torch.nn.Flatten(2),
        )
        self.linear = torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)
        self.gru = torch.nn.GRU(4, 4, 2, batch_first=True, bidirectional=True)
        self.norm = torch.nn.LayerNorm((4,), elementwise_affine=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            self.layers(x),
            self.linear(self.linear(y)),
            self.gru(self.norm(y.float()))[0],
            self.linear.weight + 1,
        )


@pytest.mark.parametrize("training", [True, False])
def test_modules_of_torch_nn_are_rebuilt_with_their_state(training: bool) -> None:
    module = torch.fx.symbolic_trace(_Leaves().train(training))
    again = round_trip(module)
    if not training:
        inputs = (torch.randn(2, 3, 6, 6), torch.randn(2, 3, 4, dtype=torch.float64))
        torch.testing.assert_close(again(*inputs), module(*inputs), rtol=0, atol=0)


class _Own(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_module_of_the_user_is_named_when_it_cannot_be_written() -> None:
    graph = Graph()
    graph.output(graph.call_module("block.own", (graph.placeholder("x"),)))
    root = torch.nn.Module()
    root.block = torch.nn.Module()
    root.block.own = _Own()
    with pytest.raises(CannotSerialise, match=r"block\.own, a .*_Own"):
        write_graph(GraphModule(root, graph))


def test_the_kind_of_state_survives() -> None:
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    root.register_buffer("kept", torch.ones(2))
    root.register_buffer("passing", torch.ones(2), persistent=False)
    root.tied = root.weight
    graph = Graph()
    nodes = [graph.get_attr(name) for name in ("weight", "kept", "passing", "tied")]
    graph.output(tuple(nodes))
    module = GraphModule(torch.nn.Module(), Graph())
    for part in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
        module.__dict__[part] = root.__dict__[part]
    module.graph = graph
    again = round_trip(module)
    assert [name for name, _ in again.named_parameters(remove_duplicate=False)] == ["weight", "tied"]
    assert again.tied is again.weight
    assert not again.weight.requires_grad
    assert list(again.state_dict()) == ["weight", "tied", "kept"]


def test_a_nested_graph_used_under_two_names_stays_one() -> None:
    inner = Graph()
    inner.output(inner.call_function(torch.relu, (inner.placeholder("y"),)))
    body = GraphModule(torch.nn.Module(), inner)
    root = torch.nn.Module()
    root.first, root.second = body, body
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("second", (graph.call_module("first", (x,)),)))
    again = round_trip(GraphModule(root, graph))
    assert again.first is again.second


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda node: setattr(node, "args", (node.args[0], 2)), "args[1] is 1 against 2"),
        (
            lambda node: setattr(node, "args", (node.args[0], 1.0)),
            "args[1] is a int (1) against a float (1.0)",
        ),
        (lambda node: setattr(node, "target", torch.sub), "target"),
        (lambda node: setattr(node, "kwargs", {"alpha": 2}), "kwargs has the keys"),
        (lambda node: setattr(node, "name", "other"), "name 'add' against 'other'"),
    ],
)
def test_a_difference_is_told_in_words(change: Any, words: str) -> None:
    def made() -> GraphModule:
        graph = Graph()
        graph.output(graph.call_function(torch.add, (graph.placeholder("x"), 1)))
        return GraphModule(torch.nn.Module(), graph)

    first, second = made(), made()
    assert first_difference(first, second) is None
    change(next(node for node in second.graph.nodes if node.op == "call_function"))
    difference = first_difference(first, second)
    assert difference is not None
    assert words in difference


def test_constants_are_compared_by_bits_dtype_and_stride() -> None:
    def with_constant(tensor: torch.Tensor) -> GraphModule:
        root = torch.nn.Module()
        root.register_buffer("constant", tensor)
        graph = Graph()
        graph.output(graph.get_attr("constant"))
        return GraphModule(root, graph)

    nan = with_constant(torch.tensor([math.nan, 0.0]))
    assert first_difference(nan, with_constant(torch.tensor([math.nan, 0.0]))) is None
    assert (
        first_difference(nan, with_constant(torch.tensor([math.nan, -0.0]))) == "constant holds other values"
    )
    double = with_constant(torch.tensor([math.nan, 0.0], dtype=torch.float64))
    assert "dtype" in (first_difference(nan, double) or "")
    square = torch.arange(4).view(2, 2)
    transposed = with_constant(square.t().contiguous().t())
    assert "stride" in (first_difference(with_constant(square), transposed) or "")
