"""Functions of Python's library that do more than compute: they write, look at frames, have a state."""

from __future__ import annotations

import collections
import contextlib
import decimal
import enum
import inspect
import io
import json
import pprint
import sys
import traceback
import typing
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from tests.frontend.harness import Capture, scene, tensor


def _printed(call: Any, *args: Any) -> tuple[Any, str]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        result = call(*args)
    return result, text.getvalue()


@scene
def a_library_prints_on_each_call(capture: Capture) -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        pprint.pprint({"a": [1, 2]})
        return x + 1

    run = capture(f)
    for _ in range(3):
        yield _printed(run, tensor())


@scene
def a_library_writes_to_a_stream(capture: Capture) -> Iterator[Any]:
    log = io.StringIO()

    def f(x: torch.Tensor) -> torch.Tensor:
        own = io.StringIO()
        json.dump({"a": 1}, log)
        pprint.pprint([1], stream=own)
        return x + len(own.getvalue())

    run = capture(f)
    for _ in range(3):
        yield run(tensor()), log.getvalue()


@scene
def a_library_calls_a_function_that_it_is_given(capture: Capture) -> Iterator[Any]:
    seen = []

    class Odd:
        pass

    def default(value: Any) -> str:
        seen.append(type(value).__name__)
        return "odd"

    def f(x: torch.Tensor, odd: Any) -> tuple[Any, ...]:
        return json.dumps([odd], default=default), x * 2

    run = capture(f)
    for _ in range(3):
        yield run(tensor(), Odd()), list(seen)


@scene
def decimal_numbers_of_another_precision(capture: Capture) -> Iterator[Any]:
    def f(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        return str(decimal.Decimal(1) / decimal.Decimal(7)), x + 1

    run = capture(f)
    for precision in (5, 9, 5):
        with decimal.localcontext() as context:
            context.prec = precision
            yield run(tensor())


def _caller_by_frame() -> str:
    return sys._getframe(1).f_code.co_name


def _caller_by_inspect() -> str:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{inspect.stack()[1].function} {frame.f_back.f_lineno - frame.f_back.f_code.co_firstlineno}"


def _caller_by_traceback() -> str:
    return traceback.extract_stack()[-2].name


@scene
def a_function_asks_who_called_it(capture: Capture) -> Iterator[Any]:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        asked = _caller_by_frame(), _caller_by_inspect(), _caller_by_traceback()
        return asked, y * 2

    run = capture(f)
    for _ in range(2):
        yield run(tensor())


@scene
def a_function_looks_at_its_own_frame(capture: Capture) -> Iterator[Any]:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        one, frame = 1, sys._getframe()
        named = sorted(frame.f_locals), frame.f_lineno - frame.f_code.co_firstlineno
        other = inspect.getframeinfo(inspect.currentframe()).function  # type: ignore[arg-type]
        return named, other, sorted(vars()), one, y * 2

    run = capture(f)
    for _ in range(2):
        yield run(tensor())


@scene
def a_class_made_by_a_call_is_of_the_callers_module(capture: Capture) -> Iterator[Any]:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        pair = collections.namedtuple("pair", "a b")  # noqa: PYI024
        colour = enum.Enum("colour", "RED BLUE")
        plain = type("plain", (), {"__init__": lambda self, value: setattr(self, "value", value)})
        row = typing.NamedTuple("row", [("a", int)])
        modules = [kind.__module__ for kind in (pair, colour, plain, row, typing.TypeVar("T"))]
        return modules, pair(1, 2)[1], colour.RED.name, plain(x).value * 2, row(3).a

    run = capture(f)
    for _ in range(2):
        yield run(tensor())


@scene
def a_generic_class_is_made_by_its_alias(capture: Capture) -> Iterator[Any]:
    item = typing.TypeVar("item")
    made = []

    class Box(typing.Generic[item]):
        def __init__(self, content: item) -> None:
            made.append(len(made))
            self.content = content

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return Box[torch.Tensor](x + 1).content * 2, len(made)

    run = capture(f)
    for _ in range(3):
        yield run(tensor()), list(made)


@scene
def an_object_dies_where_its_last_variable_does(capture: Capture) -> Iterator[Any]:
    class Thing:
        pass

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        thing = Thing()
        reference = weakref.ref(thing)
        before = reference() is thing
        del thing
        return before, reference() is None, x + 1

    run = capture(f)
    for _ in range(2):
        yield run(tensor())


@scene
def an_equal_constant_of_another_type_is_written(capture: Capture) -> Iterator[Any]:
    def f(items: list[Any], x: torch.Tensor) -> torch.Tensor:
        items[0], items[1], items[2] = frozenset({True}), slice(True), -0.0
        return x + 1

    run, items = capture(f), [frozenset({1}), slice(1), 0.0]
    for _ in range(2):
        yield run(items, tensor()), str(items)


def _raising() -> None:
    raise ValueError("here")


@scene
def a_traceback_has_the_users_frames(capture: Capture) -> Iterator[Any]:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        try:
            _raising()
        except ValueError as error:
            trace, names = error.__traceback__, []
            while trace is not None:
                names.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
        return names, x + 1

    def g(x: torch.Tensor) -> tuple[Any, ...]:
        try:
            _raising()
        except ValueError:
            kind, error, trace = sys.exc_info()
            assert kind is not None and trace is not None
            return kind.__name__, str(error), trace.tb_lineno - trace.tb_frame.f_code.co_firstlineno, x + 1
        return ()

    def h(x: torch.Tensor) -> tuple[Any, ...]:
        try:
            _raising()
        except ValueError as error:
            kept = error.__traceback__
        assert kept is not None
        return kept.tb_frame.f_code.co_name, x + 1

    for run in (capture(f), capture(g), capture(h)):
        for _ in range(2):
            yield run(tensor())
