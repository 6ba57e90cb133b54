"""Random programs: the recorded graph gives, bit for bit, what the program gives."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from frontend_recording import capture, replay
from graph_equality import first_difference
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.frontend.graph_breaks import Break
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph

Operation = Callable[[list[torch.Tensor], int, int], torch.Tensor]


def unary(function):
    return lambda values, a, b: function(values[a % len(values)])


def binary(function):
    return lambda values, a, b: function(values[a % len(values)], values[b % len(values)])


def in_place(function):
    def run(values, a, b):
        target, before = values[a % len(values)], values[a % len(values)]
        assert function(target, values[b % len(values)].detach().clone()) is before
        return target

    return run


def set_row(values, a, b):
    target = values[a % len(values)]
    if 0 in target.stride():  # torch before 2.15 refuses it; a break in any case
        raise RuntimeError("a write into an expanded tensor")
    target[b % 3] = b
    return target


def under_no_grad(values, a, b):
    with torch.no_grad():
        return values[a % len(values)] * 2


def under_autocast(values, a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = values[a % len(values)] @ values[b % len(values)]
    return product.float()


TABLE: dict[str, Operation] = {
    "add": binary(operator.add),
    "sub": binary(operator.sub),
    "mul": binary(operator.mul),
    "matmul": binary(operator.matmul),
    "reversed": unary(lambda x: 1 - x),
    "divided": unary(lambda x: 2 / (x.abs() + 1)),
    "power": unary(lambda x: 2 ** x.clamp(-2, 2)),
    "remainder": unary(lambda x: x % 3),
    "compare": binary(lambda x, y: (x < y).to(x.dtype)),
    "where": binary(lambda x, y: torch.where(x > y, x, y)),
    "relu": unary(F.relu),
    "softmax": unary(lambda x: F.softmax(x, dim=-1)),
    "norm": unary(lambda x: F.layer_norm(x, (3,))),
    "transposed": unary(lambda x: x.T),
    "view": unary(lambda x: x.reshape(9)[::2][:3].expand(3, 3)),
    "permuted": unary(lambda x: x[torch.tensor([2, 0, 1])]),
    "maximum": unary(lambda x: x.max(dim=1, keepdim=True).values.expand(3, 3)),
    "chunk": unary(lambda x: torch.cat(torch.chunk(x, 3)[::-1])),
    "row by row": unary(lambda x: torch.stack([row * 2 for row in x])),
    "shape": unary(lambda x: x * x.shape[0] + x.dim()),
    "factory": unary(lambda x: torch.ones_like(x) + torch.arange(3)),
    "add_": in_place(lambda x, y: x.add_(y)),
    "*=": in_place(operator.imul),
    "setitem": set_row,
    "cumsum": unary(lambda x: x.cumsum(0)),
    "no_grad": under_no_grad,
    "autocast": under_autocast,
    "detach": unary(lambda x: x.detach()),
    "clone": unary(lambda x: x.clone()),
    "dropout": unary(lambda x: F.dropout(x, 0.5)),
    "noise": unary(lambda x: x + torch.rand_like(x)),
}

steps = st.lists(
    st.tuples(st.sampled_from(sorted(TABLE)), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12
)


def run(program, *inputs: torch.Tensor):
    values = [*inputs, inputs[0] * 2]
    for name, a, b in program:
        try:
            values.append(TABLE[name](values, a, b))
        except (RuntimeError, Break):  # a write into an expanded tensor: eager refuses it too
            continue
    return tuple(values[len(inputs) :])


@settings(max_examples=150, deadline=None)
@given(steps)
def test_the_graph_gives_bitwise_what_the_program_gives(program):
    torch.manual_seed(0)
    reals = [torch.randn(3, 3), torch.randn(3, 3)]
    copies = [real.clone() for real in reals]
    captured = capture(lambda *fakes: run(program, *fakes), *reals)

    torch.manual_seed(1)
    expected = run(program, *copies)
    torch.manual_seed(1)
    found = replay(captured)

    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert one.stride() == other.stride()
    for real, copy in zip(reals, copies, strict=True):
        assert torch.equal(real.nan_to_num(), copy.nan_to_num())
    written = write_graph(captured.graph_module)
    assert first_difference(captured.graph_module, read_graph(written.text, written.constants)) is None
