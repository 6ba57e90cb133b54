"""Operators, attributes, items and f-strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecode import BinaryOp, Compare

from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.collections import take
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

# Indexed by the enum's value: reading the name of an enum's member is slow.
_BINARY = tuple(member.name for member in sorted(BinaryOp))
_COMPARE = tuple(member.name for member in sorted(Compare))
_CONVERSIONS = ("", "str", "repr", "ascii")
_CONVERT = (None, str, repr, ascii)


@instruction("BINARY_OP")
def binary_op(op: Interpreter, frame: Frame, operator: int) -> None:
    stack = frame.stack
    right = stack.pop()
    stack[-1] = op.binary(_BINARY[operator], stack[-1], right)


@instruction("COMPARE_OP")
def compare_op(op: Interpreter, frame: Frame, operator: int) -> None:
    stack = frame.stack
    right = stack.pop()
    stack[-1] = op.compare(_COMPARE[operator], stack[-1], right)


@instruction("IS_OP")
def is_op(op: Interpreter, frame: Frame, negated: int) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = (frame.stack[-1] is right) != bool(negated)


@instruction("CONTAINS_OP")
def contains_op(op: Interpreter, frame: Frame, negated: int) -> None:
    container = frame.stack.pop()
    frame.stack[-1] = op.contains(container, frame.stack[-1]) != bool(negated)


def _unary(name: str) -> None:
    @instruction(name)
    def unary(op: Interpreter, frame: Frame, argument: Any) -> None:
        frame.stack[-1] = op.unary(name, frame.stack[-1])


for _name in ("UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE"):
    _unary(_name)


@instruction("UNARY_NOT")
def unary_not(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack[-1] = not op.is_true(frame.stack[-1])


@instruction("TO_BOOL")
def to_bool(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack[-1] = op.is_true(frame.stack[-1])


@instruction("LOAD_ATTR")
def load_attr(op: Interpreter, frame: Frame, name: str) -> None:
    frame.stack[-1] = op.load_attr(frame.stack[-1], name)


@instruction("LOAD_SUPER_ATTR")
def load_super_attr(op: Interpreter, frame: Frame, name: str) -> None:
    stack = frame.stack
    value, start, super_type = stack.pop(), stack.pop(), stack.pop()
    stack.append(op.load_super_attr(super_type, start, value, name))


@instruction("STORE_ATTR")
def store_attr(op: Interpreter, frame: Frame, name: str) -> None:
    value, new = frame.stack.pop(), frame.stack.pop()
    op.store_attr(value, name, new)


@instruction("DELETE_ATTR")
def delete_attr(op: Interpreter, frame: Frame, name: str) -> None:
    op.delete_attr(frame.stack.pop(), name)


@instruction("BINARY_SUBSCR")
def binary_subscr(op: Interpreter, frame: Frame, argument: Any) -> None:
    key = frame.stack.pop()
    frame.stack[-1] = op.get_item(frame.stack[-1], key)


@instruction("STORE_SUBSCR")
def store_subscr(op: Interpreter, frame: Frame, argument: Any) -> None:
    stack = frame.stack
    key, container, new = stack.pop(), stack.pop(), stack.pop()
    op.set_item(container, key, new)


@instruction("DELETE_SUBSCR")
def delete_subscr(op: Interpreter, frame: Frame, argument: Any) -> None:
    key, container = frame.stack.pop(), frame.stack.pop()
    op.delete_item(container, key)


@instruction("BUILD_SLICE")
def build_slice(op: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(slice(*take(frame.stack, count)))


@instruction("BINARY_SLICE")
def binary_slice(op: Interpreter, frame: Frame, argument: Any) -> None:
    stack = frame.stack
    stop, start = stack.pop(), stack.pop()
    stack[-1] = op.get_item(stack[-1], slice(start, stop))


@instruction("STORE_SLICE")
def store_slice(op: Interpreter, frame: Frame, argument: Any) -> None:
    stack = frame.stack
    stop, start, container, new = stack.pop(), stack.pop(), stack.pop(), stack.pop()
    op.set_item(container, slice(start, stop), new)


# f-strings


@instruction("FORMAT_VALUE")
def format_value(op: Interpreter, frame: Frame, flags: int) -> None:
    spec = frame.stack.pop() if flags & 4 else ""
    frame.stack[-1] = op.format(frame.stack[-1], _CONVERSIONS[flags & 3], spec)


@instruction("CONVERT_VALUE")
def convert_value(op: Interpreter, frame: Frame, conversion: int) -> None:
    frame.stack[-1] = op.call_function(_CONVERT[conversion], (frame.stack[-1],), {})


@instruction("FORMAT_SIMPLE")
def format_simple(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack[-1] = op.format(frame.stack[-1], "", "")


@instruction("FORMAT_WITH_SPEC")
def format_with_spec(op: Interpreter, frame: Frame, argument: Any) -> None:
    spec = frame.stack.pop()
    frame.stack[-1] = op.format(frame.stack[-1], "", spec)


@instruction("BUILD_STRING")
def build_string(op: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append("".join(take(frame.stack, count)))
