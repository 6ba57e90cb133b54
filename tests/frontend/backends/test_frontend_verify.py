"""`verify=True`: eager runs too, on clones, and a difference is an error that names the value."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.frontend.backends.frontend_models import Mlp, Printing, batches, trained
from torchrepro.frontend.runtime.capture import CaptureError
from torchrepro.judge.compare import same
from torchrepro.nouns.errors import AccuracyError
from torchrepro.second_opinion.api import trace
from torchrepro.second_opinion.verify import VerifyWarning

TOTAL = 0
LOG: list[Any] = []
TABLE: dict[str, Any] = {"calls": [0], "sum": torch.zeros(1)}


def note(step: int) -> int:
    LOG.append(step)
    TABLE["calls"][0] += 1
    TABLE["sum"].add_(1)
    return len(LOG)


def wrong(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A compiler whose floating results are one percent too large."""
    return lambda *args: tuple(out * 1.01 if out.is_floating_point() else out for out in graph(*args))


def forgetful(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A compiler that loses writes to its inputs."""
    return lambda *args: graph(*(each.clone() for each in args))


def verified(target: Any, backend: Any = "eager") -> Any:
    return trace(target, backend=backend, verify=True)


def test_a_right_function_passes_and_its_effects_happen_once() -> None:
    calls: list[int] = []
    total = torch.zeros(3)

    def function(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        items.append(x)
        calls.append(len(calls))
        total.add_(x)
        return x * total

    call = verified(function)
    items: list[Any] = []
    for step in (1, 2):
        x = torch.full((3,), float(step))
        call(x, items)
        assert items[-1] is x
    assert len(items) == 2
    assert calls == [0, 1]
    assert total.tolist() == [3.0, 3.0, 3.0]


def test_what_is_printed_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = Printing()
    verified(model)(batches(1)[0][0])
    assert capsys.readouterr().out == "1\n"
    assert model.calls == 1


def test_the_first_value_that_differs_is_named() -> None:
    call = verified(lambda x: {"same": x, "off": [x, x * 2]}, wrong)
    with pytest.raises(AccuracyError, match=r'out\["off"\]\[1\].*by 0.02 at most') as raised:
        call(torch.ones(3))
    assert raised.value.verdict is not None
    assert raised.value.verdict.kind.fails


def test_a_lost_write_to_an_argument_is_a_difference() -> None:
    def function(x: torch.Tensor) -> int:
        x.add_(1)
        return 3

    with pytest.raises(AccuracyError, match=r"inputs\[0\]"):
        verified(function, forgetful)(torch.ones(3))


def test_a_lost_update_of_a_buffer_is_a_difference() -> None:
    with pytest.raises(AccuracyError, match=r"running_mean"):
        verified(nn.BatchNorm1d(3), forgetful)(torch.randn(4, 3))


def test_training_is_not_disturbed() -> None:
    expected = trained(Mlp, lambda model: model, torch.optim.Adam)
    found = trained(Mlp, verified, torch.optim.Adam)
    assert same(expected, found, strict=True)


def test_gradients_of_the_caller_are_left_alone() -> None:
    model = nn.Linear(4, 4)
    kept = torch.ones(4, 4)
    model.weight.grad = kept
    verified(model)(torch.ones(2, 4))
    assert model.weight.grad is kept
    assert model.weight.grad.tolist() == torch.ones(4, 4).tolist()


def test_random_numbers_are_those_of_eager_and_are_drawn_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    torch.manual_seed(3)
    expected = [function(torch.zeros(3)) for _ in range(3)]
    torch.manual_seed(3)
    call = verified(function)
    assert all(torch.equal(each, call(torch.zeros(3))) for each in expected)


def test_an_error_of_the_program_is_raised_as_it_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        verified(function)(torch.ones(1))


def test_an_error_of_one_side_alone_is_a_difference() -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*args: torch.Tensor) -> Any:
            raise RuntimeError("no such kernel")

        return run

    with pytest.raises(AccuracyError, match="raises only when captured: RuntimeError: no such kernel"):
        verified(lambda x: x + 1, broken)(torch.ones(1))


def test_it_is_a_decorator_of_methods() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        @trace(backend="eager", verify=True)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    model = Model()
    assert [model(torch.ones(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_the_attributes_of_a_module_are_reachable() -> None:
    model = Mlp()
    call = verified(model)
    assert call.first is model.first
    assert list(call.state_dict()) == list(model.state_dict())


def test_a_verified_function_that_calls_itself_is_compared_once() -> None:
    seen: list[int] = []

    @trace(backend="eager", verify=True)
    def tree(x: torch.Tensor, depth: int) -> torch.Tensor:
        print(end="")
        seen.append(depth)
        return x if depth == 0 else tree(x + 1, depth - 1) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VerifyWarning)
        assert tree(torch.zeros(1), 3).item() == 6.0
    assert len(seen) < 40


def test_what_cannot_be_put_back_is_said_once() -> None:
    def function(x: torch.Tensor, numbers: Any) -> torch.Tensor:
        return x + 1

    call = verified(function)
    with pytest.warns(VerifyWarning, match=r"inputs\[1\]"):
        call(torch.ones(1), iter([1, 2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", VerifyWarning)
        call(torch.ones(1), iter([1, 2]))


def test_what_holds_no_data_is_shared() -> None:
    def function(x: torch.Tensor, lock: Any) -> torch.Tensor:
        with lock:
            return x + 1

    assert verified(function)(torch.ones(1), threading.Lock()).item() == 2.0


class Noting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * note(1) + TABLE["sum"]


def noting(x: torch.Tensor) -> torch.Tensor:
    global TOTAL
    TOTAL += 1
    return x * note(TOTAL) * TOTAL + TABLE["sum"]


@pytest.mark.parametrize("target", [noting, Noting()], ids=["function", "module"])
def test_globals_change_once(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for call in (target, verified(target)):
        for name, value in (("TOTAL", 0), ("LOG", []), ("TABLE", {"calls": [0], "sum": torch.zeros(1)})):
            monkeypatch.setitem(note.__globals__, name, value)
        told.append(([call(torch.ones(1)).item() for _ in range(3)], TOTAL, LOG, str(TABLE)))
    assert told[0] == told[1]


def test_what_is_said_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        print("out")
        print("err", file=sys.stderr)
        warnings.warn("careful", stacklevel=1)
        return x + 1

    with pytest.warns(UserWarning, match="careful") as caught:
        verified(function)(torch.ones(1))
    assert len(caught) == 1
    assert capsys.readouterr() == ("out\n", "err\n")


def test_a_lost_gradient_is_found() -> None:
    def detached(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return lambda *args: tuple(out.detach() for out in graph(*args))

    def function(x: torch.Tensor) -> dict[str, Any]:
        return {"plain": x.detach() * 2, "deep": [x * 2]}

    with pytest.raises(AccuracyError, match="requires no gradient, which it does in eager"):
        verified(function, detached)(torch.ones(2, requires_grad=True))


def test_an_error_of_ours_is_no_difference() -> None:
    with pytest.raises(CaptureError, match="is not one graph"):
        trace(lambda x: print(x), backend="eager", fullgraph=True, verify=True)(torch.ones(1))


def test_a_difference_names_what_was_not_put_back() -> None:
    def function(x: torch.Tensor, numbers: Any) -> torch.Tensor:
        return x * next(numbers)

    with pytest.warns(VerifyWarning), pytest.raises(AccuracyError, match="used up twice, which may be why"):
        verified(function)(torch.ones(1), (n for n in [1, 2, 3]))


def test_a_generator_and_a_module_among_the_arguments() -> None:
    def function(x: torch.Tensor, layer: nn.Module, generator: torch.Generator) -> torch.Tensor:
        return layer(x) + torch.rand(3, generator=generator)

    generator = torch.Generator().manual_seed(1)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(verified(function)(torch.zeros(3), nn.Identity(), generator), expected)


@pytest.mark.slow
def test_inductor_is_verified() -> None:
    call = verified(Mlp(), "inductor")
    for x, _ in batches(2):
        call(x).sum().backward()
