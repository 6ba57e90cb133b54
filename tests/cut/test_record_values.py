"""Values recorded from an eager run are what each op read, whatever happened to them later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchrepro.cut.record_values import NotRecorded, observed_values, read_values, write_values
from torchrepro.nouns.repro import Repro

LIMIT = 1 << 20


def traced(function: object, *inputs: torch.Tensor) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), inputs)  # type: ignore[arg-type]


def test_every_op_has_its_result() -> None:
    x = torch.randn(3, 4)
    recording = observed_values(traced(lambda x: torch.relu(torch.sin(x)), x), limit=LIMIT)
    assert torch.equal(recording.result("sin"), x.sin())
    assert torch.equal(recording.result("relu"), x.sin().relu())


def test_an_operand_is_kept_as_it_was_when_it_was_read() -> None:
    def written_to(x: torch.Tensor) -> torch.Tensor:
        a = torch.sin(x)
        before = torch.cos(a)
        a.add_(1)
        return before + torch.tan(a)

    x = torch.randn(5)
    recording = observed_values(traced(written_to, x), limit=LIMIT)
    assert torch.equal(recording.value("sin", "cos"), x.sin())
    assert torch.equal(recording.value("sin", "tan"), x.sin() + 1)


def test_the_users_inputs_are_left_alone() -> None:
    x = torch.zeros(3)
    observed_values(traced(lambda x: x.add_(1), x), limit=LIMIT)
    assert torch.equal(x, torch.zeros(3))


def test_whether_gradients_flow_is_recorded() -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    recording = observed_values(traced(lambda x, y: torch.sin(x) * torch.cos(y), x, y), limit=LIMIT)
    assert recording.result("sin").requires_grad
    assert recording.result("sin").is_leaf
    assert not recording.result("cos").requires_grad


def test_two_readers_of_one_value_have_a_gradient_each() -> None:
    repro = traced(lambda x: torch.sin(x), torch.randn(3, requires_grad=True))
    recording = observed_values(repro, limit=LIMIT)
    one, other = recording.result("sin"), recording.result("sin")
    one.sum().backward()
    assert one.grad is not None
    assert other.grad is None


def test_strides_are_kept_but_not_the_memory_around_a_view() -> None:
    def views(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)[:2]

    x = torch.randn(400, 300)
    recording = observed_values(traced(views, x), limit=LIMIT)
    small = recording.result("getitem")
    assert torch.equal(small, views(x))
    assert small.stride()[0] < small.stride()[1]
    assert small.untyped_storage().nbytes() < 10_000


def test_several_results_are_known_as_such() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.split(x, 2)
        return a + b

    class Tracer(torch.fx.Tracer):
        def iter(self, obj: torch.fx.Proxy) -> object:
            return iter([obj[0], obj[1]])

    graph = Tracer().trace(halves)
    recording = observed_values(Repro(torch.fx.GraphModule({}, graph), (torch.arange(4.0),)), limit=LIMIT)
    assert "split" in recording.several
    with pytest.raises(NotRecorded):
        recording.result("split")


def test_what_is_too_large_is_not_kept() -> None:
    recording = observed_values(traced(lambda x: x + 1, torch.ones(100)), limit=10)
    assert not recording.knows("add")


def test_a_file_gives_the_same_values_back(tmp_path: Path) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    recording = observed_values(traced(lambda x: torch.relu(torch.sin(x)).size(0), x), limit=LIMIT)
    write_values(recording, tmp_path / "values.pt")
    again = read_values(tmp_path / "values.pt")
    assert torch.equal(again.result("relu"), recording.result("relu"))
    assert again.result("relu").requires_grad
    assert again.result("size") == 3
