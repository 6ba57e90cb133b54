"""Constants, the order of the stack, jumps and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


@instruction("NOP", "RESUME")
def nothing(op: Interpreter, frame: Frame, argument: Any) -> None:
    pass


@instruction("LOAD_CONST")
def load_const(op: Interpreter, frame: Frame, value: Any) -> None:
    frame.stack.append(value)


@instruction("LOAD_ASSERTION_ERROR")
def load_assertion_error(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.append(AssertionError)


@instruction("PUSH_NULL")
def push_null(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.append(NULL)


@instruction("POP_TOP")
def pop_top(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.pop()


@instruction("COPY")
def copy(op: Interpreter, frame: Frame, depth: int) -> None:
    frame.stack.append(frame.stack[-depth])


@instruction("SWAP")
def swap(op: Interpreter, frame: Frame, depth: int) -> None:
    stack = frame.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@instruction("JUMP")
def jump(op: Interpreter, frame: Frame, target: int) -> int:
    return target


@instruction("POP_JUMP_IF_TRUE")
def pop_jump_if_true(op: Interpreter, frame: Frame, target: int) -> int | None:
    value = frame.stack.pop()
    if value is True or (value is not False and op.is_true(value)):
        return target
    return None


@instruction("POP_JUMP_IF_FALSE")
def pop_jump_if_false(op: Interpreter, frame: Frame, target: int) -> int | None:
    value = frame.stack.pop()
    if value is True or (value is not False and op.is_true(value)):
        return None
    return target


@instruction("POP_JUMP_IF_NONE")
def pop_jump_if_none(op: Interpreter, frame: Frame, target: int) -> int | None:
    return target if frame.stack.pop() is None else None


@instruction("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(op: Interpreter, frame: Frame, target: int) -> int | None:
    return None if frame.stack.pop() is None else target


@instruction("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(op: Interpreter, frame: Frame, target: int) -> int | None:
    if op.is_true(frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@instruction("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(op: Interpreter, frame: Frame, target: int) -> int | None:
    if not op.is_true(frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@instruction("RETURN_VALUE")
def return_value(op: Interpreter, frame: Frame, argument: Any) -> Signal:
    return Signal.RETURN
