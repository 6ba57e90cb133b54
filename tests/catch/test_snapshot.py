"""What is known of a graph before the compiler sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrepro import Compiler, Place
from torchrepro.catch.snapshot import Snapshot, concrete


def taken(function: Any) -> Snapshot:
    return Snapshot.take(torch.fx.symbolic_trace(function), Place.AFTER_CAPTURE, Compiler("eager"))


@pytest.mark.parametrize(
    ("function", "mutates"),
    [
        (lambda x: x.add_(1), True),
        (lambda x: torch.add(x, x, out=x), True),
        (lambda x: torch.nn.functional.relu(x, inplace=True), True),
        (lambda x: torch.ops.aten.copy_.default(x, x), True),
        (lambda x: torch.ops.aten.add.Tensor(x, x), False),
        (lambda x: torch.relu(x) + x.sum().__neg__(), False),
    ],
)
def test_graphs_that_may_write_to_their_inputs(function: Any, mutates: bool) -> None:
    assert taken(function).mutates is mutates


def test_graphs_that_talk_to_other_ranks() -> None:
    assert taken(lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", "0")).collective
    assert taken(lambda x: torch.ops._c10d_functional.all_reduce.default(x, "sum", "0")).collective
    assert not taken(lambda x: x + 1).collective


def test_symbols_are_replaced_by_their_hints() -> None:
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    fake = mode.from_tensor(torch.zeros(5, 3), source=ConstantSource("x"))
    symbolic = fake.shape[0]
    found = concrete([fake, symbolic, 7, None])
    assert tuple(found[0].shape) == (5, 3)
    assert all(type(size) is int for size in found[0].shape)
    assert found[1:] == (5, 7, None)
