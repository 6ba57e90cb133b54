"""Calls, and the functions and classes that a program makes."""

from __future__ import annotations

from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.normalise import NULL_AFTER_CALLABLE
from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.collections import is_iterable, is_mapping, take
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


class _Attribute:
    """What is set on a function that is made: a bit each."""

    DEFAULTS = 1
    KEYWORD_DEFAULTS = 2
    ANNOTATIONS = 4
    CLOSURE = 8


def _take_callable(stack: list[Any], args: list[Any]) -> Any:
    """Pop the two slots below the arguments; a first argument that is in one of them joins the others."""
    second, first = stack.pop(), stack.pop()
    if first is NULL:
        return second
    if second is not NULL:
        args.insert(0, second)
    return first


@instruction("CALL")
def call(op: Interpreter, frame: Frame, count: int) -> None:
    stack = frame.stack
    args = take(stack, count)
    function = _take_callable(stack, args)
    stack.append(op.call_function(function, args, {}))


@instruction("CALL_KW")
def call_kw(op: Interpreter, frame: Frame, argument: tuple[int, tuple[str, ...]]) -> None:
    count, names = argument
    stack = frame.stack
    kwargs = dict(zip(names, take(stack, len(names)), strict=True))
    args = take(stack, count - len(names))
    function = _take_callable(stack, args)
    stack.append(op.call_function(function, args, kwargs))


@instruction("CALL_FUNCTION_EX")
def call_function_ex(op: Interpreter, frame: Frame, flags: int) -> None:
    stack = frame.stack
    kwargs = op.mapping(stack.pop()) if flags & 1 else {}
    starred = stack.pop()
    function = _take_callable(stack, [])
    if not is_iterable(starred):
        kind = type(starred).__name__
        raise TypeError(f"{_described(function)} argument after * must be an iterable, not {kind}")
    stack.append(op.call_function(function, op.unpack(starred), kwargs))


@instruction("DICT_MERGE")
def dict_merge(op: Interpreter, frame: Frame, depth: int) -> None:
    """`**value` of a call: like `DICT_UPDATE`, but a key may come only once."""
    stack = frame.stack
    value = stack.pop()
    function = stack[-depth - (3 if NULL_AFTER_CALLABLE else 2)]
    if not is_mapping(value):
        kind = type(value).__name__
        raise TypeError(f"{_described(function)} argument after ** must be a mapping, not {kind}")
    merged = stack[-depth]
    for key, item in op.mapping(value).items():
        if not isinstance(key, str):
            raise TypeError("keywords must be strings")
        if key in merged:
            raise TypeError(f"{_described(function)} got multiple values for keyword argument '{key}'")
        merged[key] = item


def _described(function: Any) -> str:
    """How CPython names a callable in an error."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


# Functions and classes


@instruction("MAKE_FUNCTION")
def make_function(op: Interpreter, frame: Frame, flags: int | None) -> None:
    stack = frame.stack
    code = stack.pop()
    # From 3.13 the closure is set afterwards; until then there have to be cells.
    closure = (
        stack.pop() if flags and flags & _Attribute.CLOSURE else tuple(CellType() for _ in code.co_freevars)
    )
    stack.append(FunctionType(code, frame.globals, None, None, closure))
    for flag in (_Attribute.ANNOTATIONS, _Attribute.KEYWORD_DEFAULTS, _Attribute.DEFAULTS):
        if flags and flags & flag:
            function, value = stack.pop(), stack.pop()
            stack.append(_with_attribute(function, flag, value))
    _finish(op, frame)


@instruction("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(op: Interpreter, frame: Frame, flag: int) -> None:
    function, value = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(_with_attribute(function, flag, value))
    _finish(op, frame)


def _with_attribute(function: FunctionType, flag: int, value: Any) -> FunctionType:
    match flag:
        case _Attribute.DEFAULTS:
            function.__defaults__ = value
        case _Attribute.KEYWORD_DEFAULTS:
            function.__kwdefaults__ = value
        case _Attribute.ANNOTATIONS:
            # A tuple of names and values in turn, or the dict already.
            items = dict(zip(value[::2], value[1::2], strict=True)) if isinstance(value, tuple) else value
            function.__annotations__ = items
        case _:
            # Set first of all, so there is nothing else to keep.
            return FunctionType(function.__code__, function.__globals__, None, None, value)
    return function


def _finish(op: Interpreter, frame: Frame) -> None:
    """Tell of a function that is complete: its attributes are set right after it is made (from 3.13)."""
    following = frame.program.instructions[frame.index + 1]
    if following.name != "SET_FUNCTION_ATTRIBUTE":
        frame.stack[-1] = op.make_function(frame.stack[-1])


@instruction("LOAD_BUILD_CLASS")
def load_build_class(op: Interpreter, frame: Frame, argument: Any) -> None:
    """CPython's own function: `Interpreter.call_function` knows what it stands for."""
    if "__build_class__" not in frame.builtins:
        raise NameError("__build_class__ not found")
    frame.stack.append(frame.builtins["__build_class__"])
