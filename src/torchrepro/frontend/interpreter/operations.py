"""Operations: everything an instruction does to values, one method each.

Instructions move values between stack and variables; what happens *to* a value goes through here. This class
does what CPython does. The tracer (`tracing/`) replaces methods to learn where values come from and to record
tensors. Each method may raise whatever the operation raises.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.frame import Frame

UNARY: Mapping[str, Callable[[Any], Any]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_INVERT": operator.invert,
    "UNARY_POSITIVE": operator.pos,
}

BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "ADD": operator.add,
    "AND": operator.and_,
    "FLOOR_DIVIDE": operator.floordiv,
    "LSHIFT": operator.lshift,
    "MATRIX_MULTIPLY": operator.matmul,
    "MULTIPLY": operator.mul,
    "REMAINDER": operator.mod,
    "OR": operator.or_,
    "POWER": operator.pow,
    "RSHIFT": operator.rshift,
    "SUBTRACT": operator.sub,
    "TRUE_DIVIDE": operator.truediv,
    "XOR": operator.xor,
    "INPLACE_ADD": operator.iadd,
    "INPLACE_AND": operator.iand,
    "INPLACE_FLOOR_DIVIDE": operator.ifloordiv,
    "INPLACE_LSHIFT": operator.ilshift,
    "INPLACE_MATRIX_MULTIPLY": operator.imatmul,
    "INPLACE_MULTIPLY": operator.imul,
    "INPLACE_REMAINDER": operator.imod,
    "INPLACE_OR": operator.ior,
    "INPLACE_POWER": operator.ipow,
    "INPLACE_RSHIFT": operator.irshift,
    "INPLACE_SUBTRACT": operator.isub,
    "INPLACE_TRUE_DIVIDE": operator.itruediv,
    "INPLACE_XOR": operator.ixor,
}
"""By the name that `bytecode.BinaryOp` gives the operator."""

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "EQ": operator.eq,
    "NE": operator.ne,
    "GT": operator.gt,
    "GE": operator.ge,
}


class Operations:
    """What CPython does."""

    # Variables

    def load_local(self, frame: Frame, name: str) -> Any:
        """A bound local variable; raises `UnboundLocalError` for an unbound one."""
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
        """What a cell contains; raises `ValueError` for an empty one (the instruction names the variable)."""
        return cell.cell_contents

    def store_cell(self, cell: CellType, value: Any) -> None:
        cell.cell_contents = value

    def delete_cell(self, cell: CellType) -> None:
        del cell.cell_contents

    # Objects

    def load_attr(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    def load_super_attr(self, super_type: Any, start: Any, value: Any, name: str) -> Any:
        """`super(start, value).name`, as written or with no arguments."""
        return getattr(self.call_function(super_type, (start, value), {}), name)

    def load_special(self, value: Any, name: str) -> Any:
        """A method that Python looks up on the type, bound: `__enter__`, `__exit__`."""
        kind = type(value)
        for base in kind.__mro__:
            if name in base.__dict__:
                method = base.__dict__[name]
                return method.__get__(value, kind) if hasattr(type(method), "__get__") else method
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")

    def store_attr(self, value: Any, name: str, new: Any) -> None:
        setattr(value, name, new)

    def delete_attr(self, value: Any, name: str) -> None:
        delattr(value, name)

    def get_item(self, container: Any, key: Any) -> Any:
        return container[key]

    def set_item(self, container: Any, key: Any, new: Any) -> None:
        container[key] = new

    def delete_item(self, container: Any, key: Any) -> None:
        del container[key]

    def contains(self, container: Any, value: Any) -> bool:
        return value in container

    # Operators

    def unary(self, name: str, value: Any) -> Any:
        return UNARY[name](value)

    def binary(self, name: str, left: Any, right: Any) -> Any:
        return BINARY[name](left, right)

    def compare(self, name: str, left: Any, right: Any) -> Any:
        return COMPARE[name](left, right)

    def is_true(self, value: Any) -> bool:
        return bool(value)

    def as_keys(self, values: Sequence[Any]) -> None:
        """Values are about to become keys of a dict or members of a set: C asks for their hashes."""

    def format(self, value: Any, conversion: str, spec: Any) -> str:
        """A field of an f-string; `conversion` is `""`, `"str"`, `"repr"` or `"ascii"`."""
        if conversion:
            value = getattr(builtins, conversion)(value)
        return format(value, spec)

    # Iteration

    def get_iter(self, value: Any) -> Iterator[Any]:
        return iter(value)

    def next_item(self, iterator: Iterator[Any]) -> Any:
        """The next value; raises `StopIteration` at the end."""
        return next(iterator)

    def unpack(self, value: Any) -> Sequence[Any]:
        """All values of an iterable: for `*args`, `a, b = value`, `[*value]`."""
        return list(value)

    def mapping(self, value: Any) -> Mapping[Any, Any]:
        """All items of a mapping: for `**kwargs`, `{**value}`."""
        return dict(value)

    # Calls

    def call_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call anything. The interpreter steps into Python functions; here all is called."""
        return function(*args, **kwargs)

    def call_method(self, value: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.call_function(self.load_attr(value, name), args, kwargs)

    def make_function(self, function: FunctionType) -> FunctionType:
        """A function was made by `def` or `lambda`."""
        return function

    # Modules

    def import_name(self, frame: Frame, name: str, fromlist: Any, level: int) -> Any:
        importer = frame.builtins["__import__"]
        return importer(name, frame.globals, None, fromlist, level)

    def import_from(self, module: Any, name: str) -> Any:
        try:
            return getattr(module, name)
        except AttributeError:
            import sys

            full = f"{getattr(module, '__name__', '?')}.{name}"
            if full in sys.modules:
                return sys.modules[full]
            raise ImportError(f"cannot import name {name!r} from {module!r}", name=name) from None
