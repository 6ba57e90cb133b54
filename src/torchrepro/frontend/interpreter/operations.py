"""Everything that an instruction does to values: five parts of an interpreter, each with a narrow interface.

Instructions move values between stack and variables; what happens *to* a value goes through one of the parts.
The tracer (`trace/`) has a subclass of each, which tracks where values come from and records tensors; those
in the tests (`tests/frontend/interpreter/plain.py`) do what CPython does. A method may raise whatever the
operation raises.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.frame import Frame

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

UNARY: Mapping[str, Callable[[Any], Any]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_INVERT": operator.invert,
    "UNARY_POSITIVE": operator.pos,
}

_BINARY = {
    "ADD": ("add", "+"),
    "AND": ("and", "&"),
    "FLOOR_DIVIDE": ("floordiv", "//"),
    "LSHIFT": ("lshift", "<<"),
    "MATRIX_MULTIPLY": ("matmul", "@"),
    "MULTIPLY": ("mul", "*"),
    "REMAINDER": ("mod", "%"),
    "OR": ("or", "|"),
    "POWER": ("pow", "**"),
    "RSHIFT": ("rshift", ">>"),
    "SUBTRACT": ("sub", "-"),
    "TRUE_DIVIDE": ("truediv", "/"),
    "XOR": ("xor", "^"),
}
"""By the name that `bytecode.BinaryOp` gives the operator: the stem of its special methods, its symbol."""

BINARY_METHODS = {name: stem for name, (stem, _) in _BINARY.items()}
BINARY_SYMBOLS = {name: symbol for name, (_, symbol) in _BINARY.items()}

BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, f"__{stem}__") for name, stem in BINARY_METHODS.items()},
    **{f"INPLACE_{name}": getattr(operator, f"__i{stem}__") for name, stem in BINARY_METHODS.items()},
}

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name.lower()) for name in ("LT", "LE", "EQ", "NE", "GT", "GE")
}


class Variables:
    """Local, global and shared variables, and what `def` and `import` bind to them."""

    load_global: Callable[[Frame, str], Any]
    store_global: Callable[[Frame, str, Any], None]
    delete_global: Callable[[Frame, str], None]
    load_cell: Callable[[CellType], Any]
    """Raises `ValueError` for an empty one (the instruction names it)."""
    store_cell: Callable[[CellType, Any], None]
    delete_cell: Callable[[CellType], None]
    make_function: Callable[[FunctionType], FunctionType]
    """Of a function that `def` or `lambda` made."""

    def load_local(self, frame: Frame, name: str) -> Any:
        """Return a bound local variable; raise `UnboundLocalError` for an unbound one."""
        if name in frame.locals:
            return frame.locals[name]
        raise UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value"
        )

    def load_builtin(self, frame: Frame, name: str) -> Any:
        if name in frame.builtins:
            return frame.builtins[name]
        raise NameError(f"name '{name}' is not defined", name=name)

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

    load: Callable[[Any, str], Any]
    store: Callable[[Any, str, Any], None]
    delete: Callable[[Any, str], None]
    load_super: Callable[[Any, Any, str], Any]
    """`super(start, value).name`."""
    load_special: Callable[[Any, str], Any]
    """A method that Python looks up on the type, bound: `__enter__`, `__exit__`."""


class Operators:
    """Operators on values, their truth and their text."""

    unary: Callable[[str, Any], Any]
    binary: Callable[[str, Any, Any], Any]
    compare: Callable[[str, Any, Any], Any]
    is_true: Callable[[Any], bool]
    format: Callable[[Any, str, Any], str]
    """A field of an f-string: value, conversion (`""`, `"str"`, `"repr"` or `"ascii"`), specification."""


class Items:
    """What containers hold: by key, and one after the other."""

    get: Callable[[Any, Any], Any]
    set: Callable[[Any, Any, Any], None]
    delete: Callable[[Any, Any], None]
    contains: Callable[[Any, Any], bool]
    iterate: Callable[[Any], Iterator[Any]]
    next: Callable[[Iterator[Any]], Any]
    """Raises `StopIteration` at the end."""
    unpack: Callable[[Any], Sequence[Any]]
    """All values of an iterable: for `*args`, `a, b = value`, `[*value]`."""
    mapping: Callable[[Any], Mapping[Any, Any]]
    """All items of a mapping: for `**kwargs`, `{**value}`."""
    as_keys: Callable[[Sequence[Any]], Sequence[Any]]
    """Values that become keys of a dict or members of a set: C hashes them."""


class Calls:
    """Calls: a Python function is inlined, everything else is called."""

    inline: Callable[[FunctionType, Sequence[Any], Mapping[str, Any]], Any]
    call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def call_method(self, value: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.call(self.interpreter.attributes.load(value, name), args, kwargs)


CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


def call_from(frame: Frame, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call what is not interpreted, from code with the frame's globals: `type` reads `__module__` there."""
    return FunctionType(CALL, frame.globals)(function, args, kwargs)


# Builtins that inspect their caller, which is the interpreted frame: `super()` and the `class` statement.


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
