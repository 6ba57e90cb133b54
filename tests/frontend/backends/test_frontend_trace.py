"""`trace` as a user meets it: on what it may be put, which options it takes, what it says where it cannot."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import pdb
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch

import torchrepro
from torchrepro.frontend.runtime.cache import CaptureLimitWarning
from torchrepro.nouns.errors import TorchReproError, UnknownCompilerError

traced = torchrepro.trace(backend="eager")
ONE = torch.ones(2)


class Scaled:
    factor = 3

    @traced
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @traced
    @staticmethod
    def outer_static(x: torch.Tensor) -> torch.Tensor:
        return x * 5

    @traced
    @classmethod
    def outer_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor

    @classmethod
    @traced
    def inner_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor


def add(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    return x + n


class Counting:
    """A backend that remembers that it was asked."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph


@pytest.mark.parametrize(
    ("call", "factor"),
    [
        (Scaled().method, 3),
        (Scaled.outer_static, 5),
        (Scaled().outer_static, 5),
        (Scaled.outer_class, 3),
        (Scaled().outer_class, 3),
        (Scaled.inner_class, 3),
    ],
)
def test_methods_of_all_kinds(call: Callable[..., Any], factor: int) -> None:
    assert call(ONE).tolist() == [factor, factor]


@pytest.mark.parametrize(
    "target",
    [
        traced(add),
        traced(traced(add)),
        torch.compile(add, backend="eager"),
        functools.partial(add, n=1),
        traced(torch.nn.ReLU()),
        torch.compile(torch.nn.ReLU(), backend="eager"),
        Scaled().method,
    ],
    ids=lambda each: each.__name__ if hasattr(each, "__name__") else type(each).__name__,
)
def test_what_is_captured_or_compiled_already_is_captured_by_who_comes_last(target: Any) -> None:
    backend = Counting()
    expected = target(ONE)
    assert torch.equal(torchrepro.trace(target, backend=backend, fullgraph=True)(ONE), expected)
    assert backend.graphs == 1


def test_a_method_that_is_traced_already_is_explained_with_its_object() -> None:
    assert torchrepro.explain_capture(Scaled().method, ONE).result.tolist() == [3.0, 3.0]


def test_a_module_of_torchscript_is_run_as_it_is() -> None:
    module = torch.jit.script(torch.nn.ReLU())
    assert traced(module)(ONE).tolist() == [1.0, 1.0]
    assert torchrepro.explain_capture(lambda x: module(x) + 1, ONE).result.tolist() == [2.0, 2.0]


async def later(x: torch.Tensor) -> torch.Tensor:
    return x


async def later_many(x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
    yield x


def many(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x


@pytest.mark.parametrize("function", [later, later_many, many, torch.compiler.disable(add)])
def test_what_python_runs_stays_what_it_is(function: Callable[..., Any]) -> None:
    made = traced(function)
    for asks in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction):
        assert asks(made) == asks(function)
    with pytest.raises(torchrepro.CaptureError, match=r"is not one graph: .*(captured|disable)"):
        torchrepro.trace(function, backend="eager", fullgraph=True)(ONE)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (torch.add, (ONE, ONE)),
        (torch.Tensor.add, (ONE, ONE)),
        (torch.ones(2).add, (ONE,)),
        (torch.ops.aten.add, (ONE, ONE)),
        (torch.ops.aten.add.Tensor, (ONE, ONE)),
    ],
    ids=["builtin", "method", "bound method", "operator", "overload"],
)
def test_a_function_of_torch_in_c_is_captured(function: Callable[..., Any], given: Any) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    made = torchrepro.trace(function, backend=backend, fullgraph=True)
    for alpha in (1, 2, 1):
        assert torch.equal(made(*given, alpha=alpha), function(*given, alpha=alpha))
    assert len(graphs) == 2
    assert torchrepro.trace(function, backend="eager", verify=True)(*given).shape == function(*given).shape


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (torch.nn.Linear, "is a class; trace an object of it"),
        (len, "wrap the call in a function"),
        (3, "not a Python function"),
        (property(add), "not a Python function"),
    ],
    ids=["class", "builtin", "number", "property"],
)
def test_what_cannot_be_traced_is_refused_with_a_next_step(target: Any, words: str) -> None:
    with pytest.raises(TorchReproError, match=words):
        traced(target)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "nope"}, "no backend is called 'nope'"),
        ({"backend": None}, "neither a name nor a function"),
        ({"limit": 0}, "an integer from 1 on"),
        ({"limit": None}, "an integer from 1 on"),
        ({"ranks": True}, 'write ranks="agree"'),
    ],
    ids=lambda each: each.__name__ if hasattr(each, "__name__") else type(each).__name__,
)
def test_a_wrong_option_is_refused_before_the_first_call(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TorchReproError, UnknownCompilerError), match=words):
        torchrepro.trace(add, **options)
    with pytest.raises((TorchReproError, UnknownCompilerError), match=words):
        torchrepro.trace(**options)


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        (None, "returned None, which cannot be called"),
        (lambda *args: None, "gave a NoneType in place of a tuple of 1"),
        (lambda *args: args[0], "gave a Tensor in place of a tuple of 1"),
        (lambda *args: (), "gave a tuple of 0 in place of a tuple of 1"),
    ],
)
def test_a_backend_that_gives_nonsense_is_named(compiled: Any, words: str) -> None:
    with pytest.raises(TorchReproError, match=words):
        torchrepro.trace(add, backend=lambda graph, inputs: compiled)(ONE)


def test_the_warning_about_the_limit_is_at_the_line_of_the_user() -> None:
    call = torchrepro.trace(add, backend="eager", limit=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(3):
            call(ONE, n)
    assert [(each.category, each.filename, each.lineno) for each in caught] == [
        (CaptureLimitWarning, __file__, add.__code__.co_firstlineno)
    ]


def test_nothing_is_printed_where_python_raises(capfd: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]

    with pytest.raises(IndexError):
        traced(function)(ONE, torch.tensor([7]))
    assert capfd.readouterr() == ("", "")


def breaking(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def calls_breaking(x: torch.Tensor) -> torch.Tensor:
    return breaking(x) * 2


def test_an_error_of_fullgraph_names_the_place_the_call_and_what_to_write() -> None:
    with pytest.raises(torchrepro.CaptureError) as found:
        torchrepro.trace(calls_breaking, backend="eager", fullgraph=True)(ONE)
    line, caller = breaking.__code__.co_firstlineno + 1, calls_breaking.__code__.co_firstlineno + 1
    assert str(found.value) == (
        f"calls_breaking is not one graph: at {__file__}:{line} in breaking, "
        f"called at {__file__}:{caller} in calls_breaking: "
        "a decision (if, while, and, or, not) needs the value of a tensor; "
        "keep the decision in the graph (torch.where, masks) or compute the number before"
    )


@pytest.mark.parametrize("verify", [False, True])
def test_an_error_of_the_users_is_his_own_with_fullgraph_too(verify: bool) -> None:
    def wrong_shape(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) @ torch.ones(7)

    with pytest.raises(RuntimeError, match="the same number of elements") as found:
        torchrepro.trace(wrong_shape, backend="eager", fullgraph=True, verify=verify)(ONE)
    assert found.traceback[-1].name == "wrong_shape"


def test_an_error_that_only_fakes_raise_is_no_whole_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_subclass(torch.nn.Parameter)

    with pytest.raises(torchrepro.CaptureError, match="is not one graph"):
        torchrepro.trace(function, backend="eager", fullgraph=True)(ONE)


def test_a_list_of_numbers_is_one_break_at_the_users_line() -> None:
    def function(x: torch.Tensor) -> Any:
        return x + sum(x.tolist())

    explanation = torchrepro.explain_capture(function, ONE)
    assert [(each.place.function, each.expression) for each in explanation.breaks] == [
        ("function", "x.tolist()")
    ]


def test_a_value_that_cannot_be_made_again_is_told_where_the_break_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        steps = (n for n in [1, 2])
        next(steps)
        print(end="")
        return x + next(steps)

    (found,) = torchrepro.explain_capture(function, ONE).breaks
    assert (found.place.text.strip(), found.reason) == ('print(end="")', "a generator that has begun")
    assert found.rest_of.endswith("function")


def debugged(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = y * 2
    breakpoint()
    w = z + 3
    return w * 2


def test_a_debugger_stops_in_the_users_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda: pdb.Pdb(nosigint=True).set_trace(sys._getframe(1)))
    told = []
    for function in (debugged, traced(debugged)):
        monkeypatch.setattr(sys, "stdin", io.StringIO("p sorted(locals())\nn\np float(w[0])\nc\n"))
        with contextlib.redirect_stdout(io.StringIO()) as text:
            function(ONE)
        told.append(text.getvalue())
    assert told[0] == told[1]
    assert "['x', 'y', 'z']" in told[0]
