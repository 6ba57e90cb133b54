"""Frames entered midway: where that is possible, and what the user sees of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import pytest

from torchrepro.frontend.bytecode.program import NULL, NULL_AFTER_CALLABLE, Program, program_of
from torchrepro.frontend.bytecode.resume import (
    Continuation,
    enter,
    resumed_code,
    stepped_code,
    why_not_enterable,
)
from torchrepro.frontend.source import FrameState


def place_of(function: Callable[..., Any], name: str, argument: object = None) -> tuple[Program, int]:
    """The first instruction of this kind (and with this argument)."""
    program = program_of(function.__code__)
    for index, each in enumerate(program.instructions):
        if each.name == name and argument in (None, each.argument):
            return program, index
    raise AssertionError(f"{function} has no {name} {argument}")


def resumed(function: Callable[..., Any], index: int, state: FrameState) -> Any:
    assert isinstance(function, FunctionType)
    assert why_not_enterable(program_of(function.__code__), index) is None
    return enter(resumed_code, function, index, state)


def stepped(function: Callable[..., Any], index: int, state: FrameState) -> Any:
    assert isinstance(function, FunctionType)
    return enter(stepped_code, function, index, state)


def guarded(values):
    total = 0
    for value in values:
        try:
            total += 10 // value
        except ZeroDivisionError:
            total += 1000
    return total


def test_the_rest_of_a_function_runs_with_the_given_variables() -> None:
    _, index = place_of(guarded, "RETURN_VALUE")
    assert resumed(guarded, index, FrameState({}, {}, ("given",))) == "given"


def test_one_instruction_hands_the_frame_back() -> None:
    _, index = place_of(guarded, "STORE_FAST", "total")
    got = stepped(guarded, index, FrameState({"values": [1]}, {}, (7,)))
    assert isinstance(got, Continuation)
    assert (got.index, got.state.locals, got.state.stack) == (index + 1, {"values": [1], "total": 7}, ())


def test_each_end_of_a_conditional_is_a_continuation_of_its_own() -> None:
    program, index = place_of(guarded, "FOR_ITER")
    again = stepped(guarded, index, FrameState({"total": 1}, {}, (iter([5]),)))
    over = stepped(guarded, index, FrameState({"total": 1}, {}, (iter([]),)))
    assert (again.index, again.state.stack[1:]) == (index + 1, (5,))
    assert (over.index, over.state.stack) == (program.instructions[index].target, ())


def test_a_handled_exception_runs_to_the_end_of_the_function() -> None:
    _, index = place_of(guarded, "BINARY_OP")
    rest = iter([5, 0])
    frame = FrameState({"total": 1, "value": 0}, {}, (rest, 1, 10, 0))
    assert stepped(guarded, index, frame) == 1 + 1000 + 2 + 1000


def test_a_null_is_handed_back_as_null() -> None:
    def f(a):
        return len(a)

    _, index = place_of(f, "LOAD_FAST", "a")
    slots = (len, NULL) if NULL_AFTER_CALLABLE else (NULL, len)
    got = stepped(f, index, FrameState({"a": "text"}, {}, slots))
    assert got.state.stack == (*slots, "text")
    assert resumed(f, got.index, got.state) == 4


def test_a_stack_of_the_wrong_depth_is_refused() -> None:
    _, index = place_of(guarded, "STORE_FAST", "total")
    with pytest.raises(ValueError, match=r"a stack of 0 slots at \d+, where the code has 1"):
        resumed(guarded, index, FrameState({}, {}, ()))


def test_a_closure_keeps_its_cell() -> None:
    def f():
        count = 1

        def more():
            nonlocal count
            count += 1
            return count

        return more, more()

    _, index = place_of(f, "LOAD_CLOSURE" if "count" not in f.__code__.co_varnames else "LOAD_FAST")
    cell = CellType(41)
    more, now = resumed(f, index, FrameState({}, {"count": cell}))
    assert (now, more(), cell.cell_contents) == (42, 43, 43)


def test_the_start_of_a_function_makes_its_cells() -> None:
    def f(a):
        return lambda: a

    got = stepped(f, 0, FrameState({"a": 3}, {}))
    assert got.state.locals == {}
    assert got.state.cells["a"].cell_contents == 3


def test_a_traceback_shows_the_users_function_and_line() -> None:
    def divides(a, b):
        low = b - b
        return a / low

    _, index = place_of(divides, "STORE_FAST", "low")
    with pytest.raises(ZeroDivisionError) as caught:
        resumed(divides, index, FrameState({"a": 1, "b": 2}, {}, (0,)))
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.name, last.filename) == ("divides", __file__)
    assert last.line == "return a / low"
    assert last.lineno == divides.__code__.co_firstlineno + 2


def test_an_unbound_variable_raises_as_in_the_function() -> None:
    _, index = place_of(guarded, "LOAD_FAST", "total")
    with pytest.raises(UnboundLocalError, match="total"):
        resumed(guarded, index, FrameState({"value": 1}, {}, (iter([]),)))


def test_a_deleted_first_argument_stays_deleted() -> None:
    def f(a):
        del a
        return a  # noqa: F821

    _, index = place_of(f, "DELETE_FAST")
    with pytest.raises(UnboundLocalError):
        resumed(f, index + 1, FrameState({}, {}, ()))


def generator(n):
    yield n


async def coroutine(n):
    return n


@pytest.mark.parametrize(
    ("function", "name", "reason"),
    [
        (guarded, "PUSH_EXC_INFO", "an exception is being handled"),
        (guarded, "POP_EXCEPT", "an exception is being handled"),
        (guarded, "RERAISE", "an exception is being handled"),
        (generator, "YIELD_VALUE", "the frame of a generator or coroutine belongs to its object"),
        (coroutine, "RETURN_VALUE", "the frame of a generator or coroutine belongs to its object"),
    ],
)
def test_where_a_frame_cannot_be_entered(function: Callable[..., Any], name: str, reason: str) -> None:
    program, index = place_of(function, name)
    assert why_not_enterable(program, index) == reason


def test_a_frame_that_is_being_set_up_cannot_be_entered_except_at_its_start() -> None:
    def f(a):
        return lambda: a

    program, index = place_of(f, "RESUME")
    assert why_not_enterable(program, 0) is None
    assert why_not_enterable(program, index) == "the frame is being set up"
    assert why_not_enterable(program, index + 1) is None


def test_a_generator_can_be_called_but_not_stepped() -> None:
    state = FrameState({"n": 4}, {})
    assert list(enter(resumed_code, generator, 0, state)) == [4]
    with pytest.raises(ValueError, match="generator cannot be entered at 0: the frame of a generator"):
        stepped(generator, 0, state)


def test_behind_a_handler_a_frame_can_be_entered_again() -> None:
    program, index = place_of(guarded, "POP_EXCEPT")
    assert why_not_enterable(program, index + 1) is None


def test_the_body_of_a_class_cannot_be_entered() -> None:
    body = compile("class A: x = 1", "a.py", "exec").co_consts[0]
    assert (
        why_not_enterable(program_of(body), 3) == "this is the body of a class or module, not of a function"
    )
