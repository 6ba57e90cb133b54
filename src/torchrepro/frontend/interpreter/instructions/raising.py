"""Raising and handling exceptions, and `with`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.exceptions import matches, raise_again, split_group
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.collections import take
from torchrepro.frontend.interpreter.instructions.table import instruction
from torchrepro.frontend.interpreter.native import native

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


@instruction("RAISE_VARARGS")
def raise_varargs(op: Interpreter, frame: Frame, count: int) -> int | None:
    """By CPython's own instruction, which checks what is raised and sets `__context__` and `__cause__`."""
    if count == 0:
        # What the stepped frame handles, CPython handles too (`Interpreter.proceed`).
        handled = sys.exception()
        if handled is None:
            raise RuntimeError("No active exception to reraise")
        return _go_on(op, frame, handled)
    raising = native("RAISE_VARARGS", count, count, frame.globals)
    raising(*[_instance(op, value) for value in take(frame.stack, count)])
    return None


def _instance(op: Interpreter, error: Any) -> Any:
    """`raise ValueError` makes one. What is no exception is left for CPython to complain about."""
    if not (isinstance(error, type) and issubclass(error, BaseException)):
        return error
    made = op.call_function(error, (), {})
    if not isinstance(made, BaseException):
        raise TypeError(
            f"calling {error!r} should have returned an instance of BaseException, not {type(made)!r}"
        )
    return made


@instruction("RERAISE")
def reraise(op: Interpreter, frame: Frame, argument: Any) -> int:
    return _go_on(op, frame, frame.stack.pop())


def _go_on(op: Interpreter, frame: Frame, error: BaseException) -> int:
    """To the next handler. Raising the exception for one in this frame would make its traceback longer."""
    try:
        if not op.handle(frame, error):
            raise_again(error)
        return frame.index
    finally:
        del error  # its traceback may refer to this function


@instruction("PUSH_EXC_INFO")
def push_exc_info(op: Interpreter, frame: Frame, argument: Any) -> None:
    error = frame.stack.pop()
    frame.stack += (frame.handled, error)
    frame.handled = error


@instruction("POP_EXCEPT")
def pop_except(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.handled = frame.stack.pop()


@instruction("CHECK_EXC_MATCH")
def check_exc_match(op: Interpreter, frame: Frame, argument: Any) -> None:
    expected = frame.stack.pop()
    frame.stack.append(matches(frame.stack[-1], expected))


@instruction("CHECK_EG_MATCH")
def check_eg_match(op: Interpreter, frame: Frame, argument: Any) -> None:
    expected = frame.stack.pop()
    rest, caught = split_group(frame.stack.pop(), expected)
    frame.stack += (rest, caught)
    if caught is not None:
        frame.handled = caught


@instruction("BEFORE_WITH")
def before_with(op: Interpreter, frame: Frame, argument: Any) -> None:
    manager = frame.stack.pop()
    enter = _special(op, manager, "__enter__", "")
    leave = _special(op, manager, "__exit__", " (missed __exit__ method)")
    frame.stack.append(leave)
    frame.stack.append(op.call_function(enter, (), {}))


def _special(op: Interpreter, manager: Any, name: str, remark: str) -> Any:
    if not hasattr(type(manager), name):
        kind = type(manager).__name__
        raise TypeError(f"'{kind}' object does not support the context manager protocol{remark}")
    return op.load_special(manager, name)


@instruction("WITH_EXCEPT_START")
def with_except_start(op: Interpreter, frame: Frame, argument: Any) -> None:
    """The stack: `__exit__`, where it was raised, what was handled before, the exception."""
    leave, error = frame.stack[-4], frame.stack[-1]
    frame.stack.append(op.call_function(leave, (type(error), error, error.__traceback__), {}))
