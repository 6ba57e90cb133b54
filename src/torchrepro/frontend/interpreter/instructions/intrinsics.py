"""Rare work for which CPython has no function: type parameters, what is left of an `except*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.collections import list_to_tuple, take
from torchrepro.frontend.interpreter.instructions.table import INSTRUCTIONS, instruction
from torchrepro.frontend.interpreter.native import native

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

# Numbers of `CALL_INTRINSIC_1` (Include/internal/pycore_intrinsics.h, 3.12 and 3.13)
_PRINT, _IMPORT_STAR, _STOP_ITERATION_ERROR, _ASYNC_GEN_WRAP, _UNARY_POSITIVE, _LIST_TO_TUPLE = range(1, 7)
_FRAMES_OWN = {_PRINT, _IMPORT_STAR, _ASYNC_GEN_WRAP}
"""These work on the frame that runs them, and occur in no synchronous function."""


@instruction("CALL_INTRINSIC_1")
def call_intrinsic_1(op: Interpreter, frame: Frame, which: int) -> None:
    if which == _LIST_TO_TUPLE:
        list_to_tuple(op, frame, None)
    elif which == _UNARY_POSITIVE:
        INSTRUCTIONS["UNARY_POSITIVE"](op, frame, None)
    elif which == _STOP_ITERATION_ERROR:
        frame.stack[-1] = _without_stop_iteration(frame.stack[-1])
    elif which in _FRAMES_OWN:
        raise Break(BreakKind.UNSUPPORTED, f"the instruction CALL_INTRINSIC_1 {which} is not stepped")
    else:
        frame.stack[-1] = native("CALL_INTRINSIC_1", int(which), 1, frame.globals)(frame.stack[-1])


@instruction("CALL_INTRINSIC_2")
def call_intrinsic_2(op: Interpreter, frame: Frame, which: int) -> None:
    frame.stack.append(native("CALL_INTRINSIC_2", int(which), 2, frame.globals)(*take(frame.stack, 2)))


@instruction("PREP_RERAISE_STAR")
def prep_reraise_star(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.append(native("PREP_RERAISE_STAR", 0, 2, frame.globals)(*take(frame.stack, 2)))


def _without_stop_iteration(error: BaseException) -> BaseException:
    """A generator ends by returning; a `StopIteration` that leaves its body is a mistake."""
    if not isinstance(error, StopIteration):
        return error
    mistake = RuntimeError("generator raised StopIteration")
    mistake.__cause__ = mistake.__context__ = error
    return mistake
