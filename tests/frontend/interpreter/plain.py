"""PlainInterpreter: the front end's interpreter with parts that do what CPython does. Runs on a bare Python.

A call of a Python function from an interpreted one is interpreted too; everything else (C functions, classes,
callable objects, coroutines) is called.
"""

from __future__ import annotations
import __future__

import builtins
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE
from opcode import opmap
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakSet

from torchrepro.frontend.interpreter.frame import Frame, bind_arguments
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.interpreter import Interpreter
from torchrepro.frontend.interpreter.operations import (
    BINARY,
    COMPARE,
    UNARY,
    Attributes,
    Calls,
    Items,
    Operators,
    Variables,
    build_class,
    call_from,
    super_of,
)

_NOT_INLINED = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE


class PlainVariables(Variables):
    def load_global(self, frame: Frame, name: str) -> Any:
        return frame.globals[name] if name in frame.globals else self.load_builtin(frame, name)

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        frame.globals[name] = value

    def delete_global(self, frame: Frame, name: str) -> None:
        if name not in frame.globals:
            raise NameError(f"name '{name}' is not defined", name=name)
        del frame.globals[name]

    load_cell: Callable[[CellType], Any] = operator.attrgetter("cell_contents")
    store_cell: Callable[[CellType, Any], None] = staticmethod(
        lambda cell, value: setattr(cell, "cell_contents", value)
    )
    delete_cell: Callable[[CellType], None] = staticmethod(lambda cell: delattr(cell, "cell_contents"))
    make_function: Callable[[FunctionType], FunctionType] = staticmethod(lambda function: function)


class PlainAttributes(Attributes):
    load: Callable[[Any, str], Any] = staticmethod(getattr)
    store: Callable[[Any, str, Any], None] = staticmethod(setattr)
    delete: Callable[[Any, str], None] = staticmethod(delattr)

    def load_super(self, start: Any, value: Any, name: str) -> Any:
        return getattr(super(start, value), name)

    def load_special(self, value: Any, name: str) -> Any:
        kind = type(value)
        for base in kind.__mro__:
            if name in base.__dict__:
                method = base.__dict__[name]
                return method.__get__(value, kind) if hasattr(type(method), "__get__") else method
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")


class PlainOperators(Operators):
    def unary(self, name: str, value: Any) -> Any:
        return UNARY[name](value)

    def binary(self, name: str, left: Any, right: Any) -> Any:
        return BINARY[name](left, right)

    def compare(self, name: str, left: Any, right: Any) -> Any:
        return COMPARE[name](left, right)

    is_true: Callable[[Any], bool] = staticmethod(bool)

    def format(self, value: Any, conversion: str, spec: Any) -> str:
        if conversion:
            value = getattr(builtins, conversion)(value)
        return format(value, spec)


class PlainItems(Items):
    get: Callable[[Any, Any], Any] = staticmethod(operator.getitem)
    set: Callable[[Any, Any, Any], None] = staticmethod(operator.setitem)
    delete: Callable[[Any, Any], None] = staticmethod(operator.delitem)
    contains: Callable[[Any, Any], bool] = staticmethod(operator.contains)
    iterate: Callable[[Any], Iterator[Any]] = staticmethod(iter)
    next: Callable[[Iterator[Any]], Any] = staticmethod(next)
    unpack: Callable[[Any], Sequence[Any]] = list
    mapping: Callable[[Any], Mapping[Any, Any]] = dict
    as_keys: Callable[[Sequence[Any]], Sequence[Any]] = staticmethod(lambda values: values)


class PlainCalls(Calls):
    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind, frame = type(function), self.interpreter.frame
        if kind is FunctionType:
            return self.inline(function, args, kwargs)
        if kind is MethodType and type(function.__func__) is FunctionType:
            return self.inline(function.__func__, (function.__self__, *args), kwargs)
        if frame is None:
            return function(*args, **kwargs)
        if function is super and not args:
            return super_of(self.interpreter, frame)
        if kind is BuiltinFunctionType and function is builtins.__build_class__:
            return build_class(self.interpreter, frame, *args, **kwargs)
        if kind is BuiltinFunctionType and function in _ABOUT_THE_CALLER:
            return _call_in(frame, function, args, kwargs)
        return call_from(frame, function, args, kwargs)

    def inline(self, function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function by interpreting it."""
        if function.__code__.co_flags & _NOT_INLINED:
            return function(*args, **kwargs)
        return self.interpreter.enter(Frame(function, bind_arguments(function, args, kwargs)))


class PlainInterpreter(Interpreter):
    variables = PlainVariables()
    attributes = PlainAttributes()
    operators = PlainOperators()
    items = PlainItems()

    def __init__(self) -> None:
        self.calls = PlainCalls(self)
        self.generators = WeakSet[SteppedGenerator]()


_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_ABOUT_THE_CALLER = frozenset({locals, globals, vars, dir, compile, eval, exec})
"""Builtins that look at the variables, or the `from __future__ import`, of the frame that calls them."""
_CALLER = compile("function(*args, **kwargs)", "<call>", "eval", dont_inherit=True)
_LOADS = bytes([opmap["LOAD_NAME"]]), bytes([opmap["LOAD_CONST"]])
_CALLER = _CALLER.replace(co_code=_CALLER.co_code.replace(*_LOADS))
"""Calls its first constant with the other two, so that the names in its frame are the user's alone."""


def _call_in(frame: Frame, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a builtin from a frame with the variables of the interpreted one."""
    flags = _CALLER.co_flags | frame.program.code.co_flags & _FUTURE
    code = _CALLER.replace(co_consts=(function, args, kwargs), co_flags=flags)
    return eval(code, frame.globals, _locals_of(frame))


def _locals_of(frame: Frame) -> Any:
    """Return what `locals()` returns."""
    if frame.names is not None:
        return frame.names
    found = dict(frame.locals)
    for name, cell in frame.cells.items():
        try:
            found.setdefault(name, cell.cell_contents)
        except ValueError:  # not bound (yet)
            continue
    return found
