"""The culprit op is named, whatever form it has in the graph; where there is none, none is named."""

from __future__ import annotations

import pytest
import torch
from wrong_compilers import failing_with, inquiry_on, watching_on

from torchrepro.locate.ops import find_op
from torchrepro.locate.watched_graph import Watching, op_of
from torchrepro.nouns.repro import Compiler, Place, Repro
from torchrepro.nouns.results import GuiltyOp, Way
from torchrepro.nouns.verdict import Kind, Verdict


def found_in(watching: Watching) -> GuiltyOp | None:
    return find_op(watching.inquiry, watching)


def test_the_first_of_several_wrong_ops_is_named_with_its_errors() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(torch.relu(torch.cos(x) + 1)) * 2)

    op = found_in(watching_on(model, torch.randn(8, 8), compiler="wrong_relu"))
    assert op is not None
    assert (op.node, op.op, op.way) == ("relu", "torch.relu", Way.WINDOW)
    assert op.eager_error is not None
    assert op.eager_error < 1e-6
    assert op.compiled_error == pytest.approx(0.1, rel=1e-3)


def test_an_op_that_works_in_place_is_blamed_and_not_what_it_writes_to() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        y.relu_()
        y.mul_(2)
        return y + 1

    op = found_in(watching_on(model, torch.randn(8, 8), compiler="wrong_relu"))
    assert op is not None
    assert (op.node, op.op) == ("relu_", ".relu_")


def test_an_op_with_several_results_is_named_and_not_the_node_that_takes_one() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.topk(torch.sin(x), 3)
        return torch.cos(values) + places

    op = found_in(watching_on(model, torch.randn(8, 8), compiler="wrong_topk"))
    assert op is not None
    assert (op.node, op.op, op.way) == ("topk", "torch.topk", Way.WINDOW)


def test_an_op_has_the_name_that_a_program_calls_it_by() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(torch.linalg.det(torch.nn.functional.gelu(x.relu()) + torch.special.erf(x)))

    ops = [op_of(node) for node in torch.fx.symbolic_trace(model).graph.nodes if node.op.startswith("call")]
    inner = [".relu", "torch.nn.functional.gelu", "torch.special.erf", "operator.add"]
    assert ops == [*inner, "torch.linalg.det", "torch.fft.ifft"]


def test_views_of_a_wrong_value_are_not_blamed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.view(4, 16).t())[1:].reshape(-1) + 1

    op = found_in(watching_on(model, torch.randn(8, 8), compiler="wrong_relu"))
    assert op is not None
    assert op.node == "relu"


def test_an_op_that_is_wrong_only_beside_another_is_said_to_be() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.cos(x)) + torch.sin(x)

    watching = watching_on(model, torch.randn(8, 8), compiler="wrong_relu_beside_sin")
    op = found_in(watching)
    assert op is not None
    assert (op.node, op.way) == ("relu", Way.OUTPUTS)
    assert any("not alone" in note for note in watching.inquiry.notes)


def test_an_op_that_is_wrong_one_time_in_three_is_found_and_fails_alone() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.relu(torch.cos(x))) + 1

    watching = watching_on(model, torch.randn(8, 8), compiler="wrong_relu_one_time_in_three", repeats=12)
    op = found_in(watching)
    assert op is not None
    assert (op.node, op.way) == ("relu", Way.WINDOW)
    assert not watching.inquiry.notes


def test_a_wrong_gradient_is_put_down_to_the_op_whose_backward_it_is() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.relu(torch.cos(x) + 2) * 3)

    watching = watching_on(model, torch.randn(8, 8, requires_grad=True), compiler="wrong_backward")
    op = found_in(watching)
    assert op is not None
    assert (op.node, op.way) == ("relu", Way.WINDOW)
    assert any("backward is wrong" in note for note in watching.inquiry.notes)


def chaos(x: torch.Tensor, times: int = 30) -> torch.Tensor:
    """The logistic map doubles every error."""
    for _ in range(times):
        x = 4 * x * (1 - x)
    return x


def test_error_that_gathers_is_nobodys_fault() -> None:
    watching = watching_on(lambda x: chaos(x), torch.rand(64), compiler="noisy", tolerance=1e-3)
    assert found_in(watching) is None
    assert any("accumulates" in note for note in watching.inquiry.notes)


def test_products_in_half_precision_that_only_accumulate_are_nobodys_fault() -> None:
    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(24):
            x = x @ weight
        return x

    torch.manual_seed(0)
    weight = torch.linalg.qr(torch.randn(32, 32))[0].bfloat16()
    watching = watching_on(model, torch.randn(32, 32).bfloat16(), weight, compiler="noisy", tolerance=4e-2)
    assert found_in(watching) is None


def test_a_wrong_op_is_found_among_error_that_gathers() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(chaos(x, 6) - 0.5)

    op = found_in(watching_on(model, torch.rand(64), compiler="wrong_relu"))
    assert op is not None
    assert op.node == "relu"


def in_a_region(compiler: str, x: torch.Tensor) -> Watching:
    """A relu of a product in half precision, and an op after the region."""
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, True))
    product = graph.call_function(torch.matmul, (given, given))
    relu = graph.call_function(torch.relu, (product,))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.output((graph.call_function(torch.sin, (relu,)),))
    repro = Repro(torch.fx.GraphModule({}, graph), (x,), compiler=Compiler(f"wrong_compilers:{compiler}"))
    watching = Watching.of(inquiry_on(repro))
    assert watching is not None
    return watching


def test_an_op_in_a_region_of_autocast_is_found() -> None:
    op = found_in(in_a_region("wrong_relu", torch.randn(8, 8)))
    assert op is not None
    assert (op.node, op.way) == ("relu", Way.WINDOW)


def test_an_op_is_named_and_not_the_region_that_its_backward_needs_to_fail() -> None:
    watching = in_a_region("wrong_backward_in_a_region", torch.randn(8, 8, requires_grad=True))
    op = found_in(watching)
    assert op is not None
    assert (op.node, op.way) == ("relu", Way.PIECE)
    assert any("region" in note for note in watching.inquiry.notes)


def test_a_missing_error_is_put_down_to_the_op_that_raises_it_in_eager() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.cos(x).view(5, 5))

    repro = Repro(torch.fx.symbolic_trace(model), (torch.randn(8, 8),))
    inquiry = failing_with(repro, Verdict(Kind.MISSING_ERROR))
    op = find_op(inquiry, None)
    assert op is not None
    assert (op.node, op.op, op.way) == ("view", ".view", Way.ERROR)
    assert inquiry.asked == 0


def test_of_a_whole_call_no_op_is_named_and_a_note_says_why() -> None:
    repro = Repro(torch.fx.symbolic_trace(lambda x: x + 1), (torch.randn(2),), Place.BEFORE_CAPTURE)
    inquiry = failing_with(repro, Verdict(Kind.MISMATCH))
    watching = Watching.of(inquiry)
    assert watching is None
    assert find_op(inquiry, watching) is None
    assert "whole call" in inquiry.notes[0]
