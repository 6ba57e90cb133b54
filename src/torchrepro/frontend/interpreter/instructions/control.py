"""Jumps, calls, functions and classes that a program makes, imports, exceptions, `with` and generators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CellType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import NULL, NULL_AFTER_CALLABLE
from torchrepro.frontend.graph_breaks import Unsupported
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.instructions.table import (
    INSTRUCTIONS,
    enter_all,
    instruction,
    native,
    raise_again,
    take,
)
from torchrepro.frontend.interpreter.instructions.values import is_iterable, is_mapping

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


def _jump_if(name: str, test: Callable[[Interpreter, Any], bool], *, keeps: bool = False) -> None:
    """Register a jump that is taken if a test holds for the top of the stack, which then stays if `keeps`."""

    @instruction(name)
    def jump_if(op: Interpreter, frame: Frame, target: int) -> int | None:
        taken = test(op, frame.stack[-1])
        if not (keeps and taken):
            frame.stack.pop()
        return target if taken else None


_jump_if("POP_JUMP_IF_TRUE", lambda op, value: op.operators.is_true(value))
_jump_if("POP_JUMP_IF_FALSE", lambda op, value: not op.operators.is_true(value))
_jump_if("POP_JUMP_IF_NONE", lambda op, value: value is None)
_jump_if("POP_JUMP_IF_NOT_NONE", lambda op, value: value is not None)
_jump_if("JUMP_IF_TRUE_OR_POP", lambda op, value: op.operators.is_true(value), keeps=True)
_jump_if("JUMP_IF_FALSE_OR_POP", lambda op, value: not op.operators.is_true(value), keeps=True)


# Calls


def _take_callable(stack: list[Any], args: list[Any]) -> Any:
    """Pop the two slots below the arguments and return the callable; prepend a first argument found there."""
    second, first = stack.pop(), stack.pop()
    if first is NULL:
        return second
    if second is not NULL:
        args.insert(0, second)
    return first


@instruction("CALL_KW")
def call_kw(op: Interpreter, frame: Frame, argument: tuple[int, tuple[str, ...]]) -> None:
    count, names = argument
    stack = frame.stack
    kwargs = dict(zip(names, take(stack, len(names)), strict=True))
    args = take(stack, count - len(names))
    function = _take_callable(stack, args)
    stack.append(op.calls.call(function, args, kwargs))


@instruction("CALL_FUNCTION_EX")
def call_function_ex(op: Interpreter, frame: Frame, flags: int) -> None:
    stack = frame.stack
    kwargs = op.items.mapping(stack.pop()) if flags & 1 else {}
    starred = stack.pop()
    function = _take_callable(stack, [])
    if not is_iterable(starred):
        function(*starred)  # CPython's error, which names the function
    stack.append(op.calls.call(function, op.items.unpack(starred), kwargs))


@instruction("DICT_MERGE")
def dict_merge(op: Interpreter, frame: Frame, depth: int) -> None:
    """Merge `**value` of a call: like `DICT_UPDATE`, but duplicate keys are an error."""
    stack = frame.stack
    value = stack.pop()
    function = stack[-depth - (3 if NULL_AFTER_CALLABLE else 2)]
    merged = stack[-depth]
    if not is_mapping(value):
        function(**value)  # CPython's error, which names the function
    items = op.items.mapping(value)
    if not all(isinstance(key, str) for key in items):
        raise TypeError("keywords must be strings")
    if merged.keys() & items:
        function(**merged, **items)
    merged.update(items)


# Functions and classes


_CLOSURE, _ANNOTATIONS = 8, 4
_ATTRIBUTES = {_ANNOTATIONS: "__annotations__", 2: "__kwdefaults__", 1: "__defaults__"}
"""Attributes set on a new function: one bit each."""


@instruction("MAKE_FUNCTION")
def make_function(op: Interpreter, frame: Frame, flags: int | None) -> None:
    stack = frame.stack
    code = stack.pop()
    # Cells are required; those of the closure replace them.
    made = FunctionType(code, frame.globals, None, None, tuple(CellType() for _ in code.co_freevars))
    for flag in (_CLOSURE, *_ATTRIBUTES):
        if flags and flags & flag:
            made = _with_attribute(made, flag, stack.pop())
    stack.append(made)
    _finish(op, frame)


@instruction("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(op: Interpreter, frame: Frame, flag: int) -> None:
    function, value = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(_with_attribute(function, flag, value))
    _finish(op, frame)


def _with_attribute(function: FunctionType, flag: int, value: Any) -> FunctionType:
    if flag == _CLOSURE:  # set first of all, so there is nothing else to keep
        return FunctionType(function.__code__, function.__globals__, None, None, value)
    if flag == _ANNOTATIONS and isinstance(value, tuple):  # names and values in turn
        value = dict(zip(value[::2], value[1::2], strict=True))
    setattr(function, _ATTRIBUTES[flag], value)
    return function


def _finish(op: Interpreter, frame: Frame) -> None:
    """Report a complete function: its attributes are set right after it is made (from 3.13)."""
    following = frame.program.instructions[frame.index + 1]
    if following.name != "SET_FUNCTION_ATTRIBUTE":
        frame.stack[-1] = op.variables.make_function(frame.stack[-1])


# Exceptions and `with`


@instruction("RAISE_VARARGS")
def raise_varargs(op: Interpreter, frame: Frame, count: int) -> int | None:
    """Raise by CPython's own instruction, which checks the type and sets `__context__` and `__cause__`."""
    if count == 0:
        # CPython handles the exception of the interpreted frame too (`Interpreter.proceed`).
        handled = sys.exception()
        if handled is None:
            raise RuntimeError("No active exception to reraise")
        return _go_on(frame, handled)
    raising = native("RAISE_VARARGS", count, count, frame.globals)
    raising(*[_instance(op, value) for value in take(frame.stack, count)])
    return None


def _instance(op: Interpreter, error: Any) -> Any:
    """Return an instance for `raise ValueError`; anything that is no exception class is returned as it is."""
    if not (isinstance(error, type) and issubclass(error, BaseException)):
        return error
    made = op.calls.call(error, (), {})
    if not isinstance(made, BaseException):
        raise TypeError(
            f"calling {error!r} should have returned an instance of BaseException, not {type(made)!r}"
        )
    return made


def _go_on(frame: Frame, error: BaseException) -> int:
    """Go to the next handler, without raising within the frame: that would lengthen the traceback."""
    try:
        if not frame.handle(error):
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


@instruction("CHECK_EG_MATCH")
def check_eg_match(op: Interpreter, frame: Frame, argument: Any) -> None:
    rest, caught = native("CHECK_EG_MATCH", 0, 2, frame.globals, 2)(*take(frame.stack, 2))
    frame.stack += (rest, caught)
    if caught is not None:
        frame.handled = caught


@instruction("BEFORE_WITH")
def before_with(op: Interpreter, frame: Frame, argument: Any) -> None:
    manager = frame.stack.pop()
    for name, remark in (("__enter__", ""), ("__exit__", " (missed __exit__ method)")):
        if not hasattr(type(manager), name):
            kind = type(manager).__name__
            raise TypeError(f"'{kind}' object does not support the context manager protocol{remark}")
    enter = op.attributes.load_special(manager, "__enter__")
    frame.stack.append(op.attributes.load_special(manager, "__exit__"))
    frame.stack.append(op.calls.call(enter, (), {}))


@instruction("WITH_EXCEPT_START")
def with_except_start(op: Interpreter, frame: Frame, argument: Any) -> None:
    """Call `__exit__`; the stack is `__exit__`, the raising index, the previously handled, the exception."""
    leave, error = frame.stack[-4], frame.stack[-1]
    frame.stack.append(op.calls.call(leave, (type(error), error, error.__traceback__), {}))


# Numbers of `CALL_INTRINSIC_1` (Include/internal/pycore_intrinsics.h, 3.12 and 3.13)
_AS_IN_3_11 = {5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}
_OF_FRAMES = {1: "print", 2: "import *", 4: "async yield"}
"""These work on the frame that runs them, and occur in no synchronous function."""


@instruction("CALL_INTRINSIC_1")
def call_intrinsic_1(op: Interpreter, frame: Frame, which: int) -> None:
    if which in _AS_IN_3_11:
        INSTRUCTIONS[_AS_IN_3_11[which]](op, frame, None)
    elif which in _OF_FRAMES:
        raise Unsupported(f"the instruction CALL_INTRINSIC_1 {which} is not supported")
    else:
        frame.stack[-1] = native("CALL_INTRINSIC_1", int(which), 1, frame.globals)(frame.stack[-1])


# Generators: what their body does. Their interface is in `generator.py`.


enter_all(
    {
        # The generator already exists when its frame first runs; the first value sent is None.
        "RETURN_GENERATOR": lambda op, argument: None,
        "END_SEND": lambda op, argument, inner, value: value,
        "GET_YIELD_FROM_ITER": lambda op, argument, value: (
            value if isinstance(value, GeneratorType) else op.items.iterate(value)
        ),
    }
)


@instruction("SEND")
def send(op: Interpreter, frame: Frame, end: int) -> int | None:
    stack = frame.stack
    value, inner = stack.pop(), stack[-1]
    try:
        stack.append(
            op.items.next(inner) if value is None else op.calls.call_method(inner, "send", (value,), {})
        )
    except StopIteration as stop:
        if sys.version_info < (3, 12):
            stack.pop()  # later versions have END_SEND for this
        stack.append(stop.value)
        return end
    return None


@instruction("CLEANUP_THROW")
def cleanup_throw(op: Interpreter, frame: Frame, argument: Any) -> None:
    """End a `yield from` whose inner iterator raised `StopIteration` at a throw; reraise other errors."""
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        raise_again(error)
    frame.stack[-3:] = [None, error.value]


INSTRUCTIONS.update(
    {
        "NOP": lambda op, frame, argument: None,
        "RESUME": lambda op, frame, argument: None,
        "JUMP": lambda op, frame, target: target,
        "RETURN_VALUE": lambda op, frame, argument: Signal.RETURN,
        "CALL": lambda op, frame, count: call_kw(op, frame, (count, ())),
        # CPython's own function: `Calls.call` recognises it.
        "LOAD_BUILD_CLASS": lambda op, frame, argument: frame.stack.append(
            op.variables.load_builtin(frame, "__build_class__")
        ),
        "IMPORT_NAME": lambda op, frame, name: frame.stack.append(
            op.variables.import_name(frame, name, *take(frame.stack, 2))
        ),
        "IMPORT_FROM": lambda op, frame, name: frame.stack.append(
            op.variables.import_from(frame.stack[-1], name)
        ),
        "RERAISE": lambda op, frame, argument: _go_on(frame, frame.stack.pop()),
        "CHECK_EXC_MATCH": lambda op, frame, argument: frame.stack.extend(
            native("CHECK_EXC_MATCH", 0, 2, frame.globals, 2)(*take(frame.stack, 2))
        ),
        "CALL_INTRINSIC_2": lambda op, frame, which: frame.stack.append(
            native("CALL_INTRINSIC_2", int(which), 2, frame.globals)(*take(frame.stack, 2))
        ),
        "PREP_RERAISE_STAR": lambda op, frame, argument: frame.stack.append(
            native("PREP_RERAISE_STAR", 0, 2, frame.globals)(*take(frame.stack, 2))
        ),
        "YIELD_VALUE": lambda op, frame, argument: Signal.YIELD,
    }
)
