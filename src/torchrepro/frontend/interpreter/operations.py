"""Everything that an instruction does to values: five parts of an interpreter, each with a narrow interface.

Instructions move values between stack and variables; what happens *to* a value goes through one of the parts.
The classes here do what CPython does. The tracer (`trace/`) has a subclass of each, which learns where values
come from and records tensors. A method may raise whatever the operation raises.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.callers import build_class, call_from, super_of
from torchrepro.frontend.interpreter.frame import Frame, bind_arguments

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

UNARY: Mapping[str, Callable[[Any], Any]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_INVERT": operator.invert,
    "UNARY_POSITIVE": operator.pos,
}

BINARY_METHODS = {
    "ADD": "add",
    "AND": "and",
    "FLOOR_DIVIDE": "floordiv",
    "LSHIFT": "lshift",
    "MATRIX_MULTIPLY": "matmul",
    "MULTIPLY": "mul",
    "REMAINDER": "mod",
    "OR": "or",
    "POWER": "pow",
    "RSHIFT": "rshift",
    "SUBTRACT": "sub",
    "TRUE_DIVIDE": "truediv",
    "XOR": "xor",
}
"""By the name that `bytecode.BinaryOp` gives the operator: the stem of its special methods."""

BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, f"__{stem}__") for name, stem in BINARY_METHODS.items()},
    **{f"INPLACE_{name}": getattr(operator, f"__i{stem}__") for name, stem in BINARY_METHODS.items()},
}

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name.lower()) for name in ("LT", "LE", "EQ", "NE", "GT", "GE")
}

_NOT_INLINED = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE


class Variables:
    """Local, global and shared variables, and what `def` and `import` bind to them."""

    def load_local(self, frame: Frame, name: str) -> Any:
        """Return a bound local variable; raise `UnboundLocalError` for an unbound one."""
        if name in frame.locals:
            return frame.locals[name]
        raise UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value"
        )

    def load_global(self, frame: Frame, name: str) -> Any:
        return frame.globals[name] if name in frame.globals else self.load_builtin(frame, name)

    def load_builtin(self, frame: Frame, name: str) -> Any:
        if name in frame.builtins:
            return frame.builtins[name]
        raise NameError(f"name '{name}' is not defined", name=name)

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        frame.globals[name] = value

    def delete_global(self, frame: Frame, name: str) -> None:
        if name not in frame.globals:
            raise NameError(f"name '{name}' is not defined", name=name)
        del frame.globals[name]

    def load_cell(self, cell: CellType) -> Any:
        """Return a cell's contents; raise `ValueError` for an empty one (the instruction names it)."""
        return cell.cell_contents

    def store_cell(self, cell: CellType, value: Any) -> None:
        cell.cell_contents = value

    def delete_cell(self, cell: CellType) -> None:
        del cell.cell_contents

    def make_function(self, function: FunctionType) -> FunctionType:
        """Return a function that `def` or `lambda` made."""
        return function

    def import_name(self, frame: Frame, name: str, fromlist: Any, level: int) -> Any:
        return frame.builtins["__import__"](name, frame.globals, None, fromlist, level)

    def import_from(self, module: Any, name: str) -> Any:
        try:
            return getattr(module, name)
        except AttributeError:
            full = f"{getattr(module, '__name__', '?')}.{name}"
            if full in sys.modules:
                return sys.modules[full]
            raise ImportError(f"cannot import name {name!r} from {module!r}", name=name) from None


class Attributes:
    """`object.name`, read, written and deleted."""

    load: Callable[[Any, str], Any] = staticmethod(getattr)
    store: Callable[[Any, str, Any], None] = staticmethod(setattr)
    delete: Callable[[Any, str], None] = staticmethod(delattr)

    def load_super(self, start: Any, value: Any, name: str) -> Any:
        """Return `super(start, value).name`."""
        return getattr(super(start, value), name)

    def load_special(self, value: Any, name: str) -> Any:
        """Return a method that Python looks up on the type, bound: `__enter__`, `__exit__`."""
        kind = type(value)
        for base in kind.__mro__:
            if name in base.__dict__:
                method = base.__dict__[name]
                return method.__get__(value, kind) if hasattr(type(method), "__get__") else method
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")


class Operators:
    """Operators on values, their truth and their text."""

    def unary(self, name: str, value: Any) -> Any:
        return UNARY[name](value)

    def binary(self, name: str, left: Any, right: Any) -> Any:
        return BINARY[name](left, right)

    def compare(self, name: str, left: Any, right: Any) -> Any:
        return COMPARE[name](left, right)

    is_true: Callable[[Any], bool] = staticmethod(bool)

    def format(self, value: Any, conversion: str, spec: Any) -> str:
        """Return a field of an f-string; `conversion` is `""`, `"str"`, `"repr"` or `"ascii"`."""
        if conversion:
            value = getattr(builtins, conversion)(value)
        return format(value, spec)


class Items:
    """What containers hold: by key, and one after the other."""

    get: Callable[[Any, Any], Any] = staticmethod(operator.getitem)
    set: Callable[[Any, Any, Any], None] = staticmethod(operator.setitem)
    delete: Callable[[Any, Any], None] = staticmethod(operator.delitem)
    contains: Callable[[Any, Any], bool] = staticmethod(operator.contains)
    iterate: Callable[[Any], Iterator[Any]] = staticmethod(iter)
    next: Callable[[Iterator[Any]], Any] = staticmethod(next)
    """Raises `StopIteration` at the end."""
    unpack: Callable[[Any], Sequence[Any]] = list
    """All values of an iterable: for `*args`, `a, b = value`, `[*value]`."""
    mapping: Callable[[Any], Mapping[Any, Any]] = dict
    """All items of a mapping: for `**kwargs`, `{**value}`."""

    def as_keys(self, values: Sequence[Any]) -> None:
        """Prepare values that become keys of a dict or members of a set: C asks for their hashes."""


class Calls:
    """Calls: a Python function is inlined, everything else is called."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

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
        return call_from(frame, function, args, kwargs)

    def call_method(self, value: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.call(self.interpreter.attributes.load(value, name), args, kwargs)

    def inline(self, function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function by interpreting it."""
        if function.__code__.co_flags & _NOT_INLINED:
            return function(*args, **kwargs)
        return self.interpreter.enter(Frame(function, bind_arguments(function, args, kwargs)))
