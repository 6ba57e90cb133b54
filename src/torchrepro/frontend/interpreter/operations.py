"""Everything that an instruction does to values: five parts of an interpreter, each with a narrow interface.

Instructions move values between stack and variables; what happens *to* a value goes through one of the parts.
The classes here do what CPython does. The tracer (`trace/`) has a subclass of each, which tracks where values
come from and records tensors. A method may raise whatever the operation raises.
"""

from __future__ import annotations
import __future__

import builtins
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE
from opcode import opmap
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

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

    load_cell: Callable[[CellType], Any] = operator.attrgetter("cell_contents")
    """Raises `ValueError` for an empty one (the instruction names it)."""
    store_cell: Callable[[CellType, Any], None] = staticmethod(
        lambda cell, value: setattr(cell, "cell_contents", value)
    )
    delete_cell: Callable[[CellType], None] = staticmethod(lambda cell: delattr(cell, "cell_contents"))
    make_function: Callable[[FunctionType], FunctionType] = staticmethod(lambda function: function)
    """Of a function that `def` or `lambda` made."""

    def import_name(self, frame: Frame, name: str, level: int, fromlist: Any) -> Any:
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

    as_keys: Callable[[Sequence[Any]], Sequence[Any]] = staticmethod(lambda values: values)
    """Values that become keys of a dict or members of a set: C hashes them."""


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


# Builtins that inspect their caller, which is the interpreted frame; and the `class` statement.

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def locals_of(frame: Frame) -> Any:
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


ABOUT_THE_CALLER = frozenset({locals, globals, vars, dir, compile, eval, exec})
"""Builtins that look at the variables, or the `from __future__ import`, of the frame that calls them."""

CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
_CALLER = compile("function(*args, **kwargs)", "<call>", "eval", dont_inherit=True)
_LOADS = bytes([opmap["LOAD_NAME"]]), bytes([opmap["LOAD_CONST"]])
_CALLER = _CALLER.replace(co_code=_CALLER.co_code.replace(*_LOADS))
"""Calls its first constant with the other two, so that the names in its frame are the user's alone."""


def call_from(frame: Frame, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call what is not interpreted, from code with the frame's globals: `type` reads `__module__` there."""
    if type(function) is not BuiltinFunctionType or function not in ABOUT_THE_CALLER:
        return FunctionType(CALL, frame.globals)(function, args, kwargs)
    flags = _CALLER.co_flags | frame.program.code.co_flags & _FUTURE
    code = _CALLER.replace(co_consts=(function, args, kwargs), co_flags=flags)
    return eval(code, frame.globals, locals_of(frame))


def super_of(interpreter: Interpreter, frame: Frame) -> Any:
    """Return `super()`: the class is in the `__class__` cell, the object is the first argument."""
    code = frame.program.code
    if not code.co_argcount:
        raise RuntimeError("super(): no arguments")
    name = code.co_varnames[0]
    if name in frame.cells:
        value = _contents(interpreter, frame, name, "super(): arg[0] deleted")
    elif name in frame.locals:
        value = interpreter.variables.load_local(frame, name)
    else:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in frame.cells:
        raise RuntimeError("super(): __class__ cell not found")
    start = _contents(interpreter, frame, "__class__", "super(): empty __class__ cell")
    return interpreter.calls.call(super, (start, value), {})


def _contents(interpreter: Interpreter, frame: Frame, name: str, otherwise: str) -> Any:
    try:
        return interpreter.variables.load_cell(frame.cells[name])
    except ValueError:
        pass  # raised below, so that the error has no `__context__`
    raise RuntimeError(otherwise)


def build_class(
    interpreter: Interpreter, frame: Frame, body: FunctionType, name: str, /, *bases: Any, **keywords: Any
) -> Any:
    """Do what `builtins.__build_class__` does, with the body interpreted."""
    resolved = types.resolve_bases(bases)
    metaclass, namespace, keywords = types.prepare_class(name, resolved, keywords)
    if not hasattr(type(namespace), "__getitem__"):
        prepare = (
            f"{metaclass.__name__}.__prepare__" if isinstance(metaclass, type) else "<metaclass>.__prepare__"
        )
        raise TypeError(f"{prepare}() must return a mapping, not {type(namespace).__name__}")
    inner = Frame(body, {})
    inner.names = namespace
    cell = interpreter.run(inner)
    if resolved is not bases:
        namespace["__orig_bases__"] = bases
    made = interpreter.calls.call(metaclass, (name, resolved, namespace), keywords)
    if isinstance(made, type) and isinstance(cell, CellType):
        _check_class_cell(cell, name, made)
    return made


def _check_class_cell(cell: CellType, name: str, made: type) -> None:
    """Raise if `type.__new__` has not set the `__class__` cell: a metaclass may drop `__classcell__`."""
    try:
        found = cell.cell_contents
    except ValueError:
        found = None
    if found is None:
        raise RuntimeError(
            f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ propagated to type.__new__?"
        )
    if found is not made:
        raise TypeError(f"__class__ set to {found!r} defining {name!r} as {made!r}")
