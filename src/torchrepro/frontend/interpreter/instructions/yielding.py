"""Generators: what their body does. What they are to others is in `generator.py`."""

from __future__ import annotations

import sys
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.exceptions import raise_again
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


@instruction("RETURN_GENERATOR")
def return_generator(op: Interpreter, frame: Frame, argument: Any) -> None:
    """The generator exists already when its frame is first stepped; what is sent first is None."""
    frame.stack.append(None)


@instruction("YIELD_VALUE")
def yield_value(op: Interpreter, frame: Frame, argument: Any) -> Signal:
    return Signal.YIELD


@instruction("GET_YIELD_FROM_ITER")
def get_yield_from_iter(op: Interpreter, frame: Frame, argument: Any) -> None:
    if not isinstance(frame.stack[-1], GeneratorType):
        frame.stack[-1] = op.get_iter(frame.stack[-1])


@instruction("SEND")
def send(op: Interpreter, frame: Frame, end: int) -> int | None:
    stack = frame.stack
    value, inner = stack.pop(), stack[-1]
    try:
        stack.append(op.next_item(inner) if value is None else op.call_method(inner, "send", (value,), {}))
    except StopIteration as stop:
        if sys.version_info < (3, 12):
            stack.pop()  # later Pythons have END_SEND for it
        stack.append(stop.value)
        return end
    return None


@instruction("END_SEND")
def end_send(op: Interpreter, frame: Frame, argument: Any) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


@instruction("CLEANUP_THROW")
def cleanup_throw(op: Interpreter, frame: Frame, argument: Any) -> None:
    """An inner iterator raised what was thrown into it: `StopIteration` ends the `yield from`."""
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        raise_again(error)
    frame.stack[-3:] = [None, error.value]
