"""A graph as a plain function: it reads as if written by hand, and computes the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from script_cases import ERROR, captured, first_text, function_of, lowered
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Place, Repro
from torchrepro.script.expressions import Unwritable
from torchrepro.script.spelling import Speller
from torchrepro.state.fake_run import run_on_fakes


def _body(repro: Repro) -> str:
    text = first_text(repro, ERROR)
    return text[text.index("def f(") :].split("\n\n\n")[0]


_X, _Y = torch.ones(3, 3), torch.full((3, 3), 2.0)


@pytest.mark.parametrize(
    ("function", "inputs", "line"),
    [
        (lambda x: torch.relu(x), (_X,), "return torch.relu(x)"),
        (lambda x, y: (x + y) * 2 - 1, (_X, _Y), "return (x + y) * 2 - 1"),
        (lambda x, y: x - (y - 1), (_X, _Y), "return x - (y - 1)"),
        (lambda x: 1 - x, (_X,), "return 1 - x"),
        (lambda x: -(x**2), (_X,), "return -(x**2)"),
        (lambda x, y: x @ y, (_X, _Y), "return x @ y"),
        (lambda x: x.view(9).sum(), (_X,), "return x.view(9).sum()"),
        (lambda x: x.amax(1, keepdim=True), (_X,), "return x.amax(1, keepdim=True)"),
        (lambda x: x[:, 1:], (_X,), "return x[:, 1:]"),
        (lambda x: x[1], (_X,), "return x[1]"),
        (lambda x: x.to(torch.float64), (_X,), "return x.to(torch.float64)"),
        (lambda x: F.gelu(x, approximate="tanh"), (_X,), 'return F.gelu(x, approximate="tanh")'),
        (lambda x: torch.softmax(x, -1), (_X,), "return torch.softmax(x, -1)"),
        (lambda x: x > 0, (_X,), "return x > 0"),
        (lambda x: torch.special.erfcx(x), (_X,), "return torch.special.erfcx(x)"),
        (lambda x: torch.full((2, 3), 1.0), (_X,), "return torch.full([2, 3], 1.0)"),
        (lambda x: x.add_(1), (_X,), "return x.add_(1)"),
    ],
)
def test_operators_have_their_public_names(
    function: Callable[..., Any], inputs: tuple[Any, ...], line: str
) -> None:
    assert _body(lowered(function, *inputs)).endswith(line)


def test_without_a_public_spelling_that_is_the_same_operator_its_own_name_stays() -> None:
    body = _body(lowered(lambda x: torch.ops.aten._unsafe_view(x, [9]), _X))
    assert body.endswith("return torch.ops.aten._unsafe_view.default(x, [9])")


def test_what_inductor_takes_apart_is_put_together_again() -> None:
    def function(x: Any) -> Any:
        return 1 - x.to(torch.bfloat16), torch.arange(3)

    graph = make_fx(function, decomposition_table=select_decomp_table())(_X)
    assert "prims" in graph.code
    body = _body(Repro(graph, (_X,), Place.AFTER_AOT))
    assert body.endswith("return 1 - x.to(torch.bfloat16), torch.arange(3)")


def test_inputs_are_called_by_what_they_are() -> None:
    repro = lowered(
        lambda a, b, c: F.conv2d(a, b, c, padding=1),
        torch.ones(1, 2, 4, 4),
        torch.ones(3, 2, 3, 3),
        torch.ones(3),
    )
    assert _body(repro) == "def f(x, weight, bias):\n    return F.conv2d(x, weight, bias, padding=1)"


def test_results_with_several_parts_are_unpacked() -> None:
    body = _body(captured(lambda x: torch.max(x, 1), _X))
    assert body.splitlines()[1:] == ["    values, indices = torch.max(x, 1)", "    return values, indices"]
    assert _body(captured(lambda x: torch.max(x, 1)[0], _X)).endswith("return torch.max(x, 1)[0]")


def test_statements_stay_statements() -> None:
    def function(x: Any, y: Any) -> Any:
        x += 1
        y[0:, :] = x
        return y * 2

    body = _body(captured(function, _X, _Y))
    assert body.splitlines()[1:] == ["    x += 1", "    y[0:, :] = x", "    return y * 2"]


def test_an_autocast_in_the_graph_is_a_block() -> None:
    def function(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ y
        return h.float()

    assert _body(captured(function, _X, _Y)).splitlines()[1:] == [
        '    with torch.autocast("cpu", dtype=torch.bfloat16):',
        "        matmul = x @ y",
        "    return matmul.float()",
    ]


def test_sizes_are_read_off_the_tensors_that_have_them() -> None:
    body = _body(captured(lambda x: x.view(x.shape[0] * x.shape[1]), torch.ones(3, 4), dynamic=True))
    assert body == "def f(x):\n    return x.view(x.shape[0] * x.shape[1])"


def test_a_nested_graph_is_a_function_of_its_own() -> None:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    repro = captured(function, _X)
    made = function_of(first_text(repro, ERROR))
    for x in (_X, -_X):
        assert torch.equal(made(x), function(x))


def test_calls_keep_their_order() -> None:
    def function(x: Any, y: Any) -> Any:
        a = x.sum()
        x.add_(1)
        return a + y.sum() + x.sum()

    repro = captured(function, _X, _Y)
    made = function_of(first_text(repro, ERROR))
    assert torch.equal(made(_X.clone(), _Y), function(_X.clone(), _Y))


def test_an_operator_that_nobody_can_register_is_not_written() -> None:
    repro = lowered(torch.relu, _X)
    (node,) = (node for node in repro.graph.graph.nodes if node.op == "call_function")
    found = run_on_fakes(repro)
    with torch.library._scoped_library("polish_tests", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        node.target = torch.ops.polish_tests.twice.default
        with pytest.raises(Unwritable, match="whose source is not known"):
            Speller(found).spelling(node)


_STEPS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: 2 - (x - y),
    "mul": lambda x, y: x * (y + 0.5),
    "div": lambda x, y: x / (y.abs() + 1),
    "matmul": lambda x, y: x @ y,
    "relu": lambda x, y: torch.relu(x),
    "sigmoid": lambda x, y: x.sigmoid(),
    "power": lambda x, y: -(x**2),
    "softmax": lambda x, y: torch.softmax(x, 0),
    "mean": lambda x, y: x.mean(1, keepdim=True) + y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "half": lambda x, y: x.to(torch.bfloat16).float(),
    "transpose": lambda x, y: x.t().contiguous(),
    "slices": lambda x, y: torch.cat([x[1:], y[:1]]),
    "flip": lambda x, y: x.flip(0),
    "sort": lambda x, y: torch.sort(x, 1, descending=True)[0],
    "several": lambda x, y: x.topk(2, 1)[0].sum() + y,
    "norm": lambda x, y: F.layer_norm(x, [3], eps=1e-3),
    "in_place": lambda x, y: x.clone().mul_(2).add_(y),
    "clamp": lambda x, y: x.clamp(-1, max=1.5),
    "pad": lambda x, y: F.pad(x, [1, 0])[:, 1:],
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(_STEPS)), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["captured", "lowered", "decomposed"]),
)
@settings(max_examples=25, deadline=None)
def test_the_function_computes_the_same_bits(steps: list[tuple[str, int, int]], form: str) -> None:
    def function(x: Any, y: Any) -> Any:
        values = [x, y]
        for name, first, second in steps:
            values.append(_STEPS[name](values[first % len(values)], values[second % len(values)]))
        return values[-1], values[len(values) // 2] * 1

    generator = torch.Generator().manual_seed(len(steps))
    inputs = tuple(torch.randn(3, 3, generator=generator) for _ in range(2))
    if form == "captured":
        repro = Repro(torch.fx.symbolic_trace(function), inputs)
    else:
        table = select_decomp_table() if form == "decomposed" else None
        repro = Repro(make_fx(function, decomposition_table=table)(*inputs), inputs, Place.AFTER_AOT)
    _assert_same_bits(repro)


@pytest.mark.parametrize("name", ["transformer", "lstm_unrolled", "integer", "mixer", "in_place_state"])
def test_the_function_of_a_model_computes_the_same_bits(name: str) -> None:
    model, args, kwargs = zoo.MODELS[name]()
    model.eval()
    graphs: list[Repro] = []

    def backend(graph: Any, example_inputs: list[Any]) -> Any:
        graphs.append(Repro(graph, clone_inputs(tuple(example_inputs))))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(*args, **kwargs)
    for repro in graphs:
        _assert_same_bits(repro)


def _assert_same_bits(repro: Repro) -> None:
    text = first_text(repro, ERROR)
    function = function_of(text)
    inputs, again = clone_inputs(repro.inputs), clone_inputs(repro.inputs)
    used = [
        value
        for node, value in zip(
            (node for node in repro.graph.graph.nodes if node.op == "placeholder"), inputs, strict=True
        )
        if node.users
    ]
    with torch.no_grad():
        made, wanted = function(*used), repro.graph(*again)
    for (_, left), (_, right) in zip(tensors_in(made), tensors_in(wanted), strict=True):
        assert left.dtype is right.dtype
        assert torch.equal(left, right)
    for left, right in zip(inputs, again, strict=True):
        assert torch.equal(left, right)
