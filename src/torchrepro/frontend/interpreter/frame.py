"""Frame: a function that is being interpreted, as CPython keeps it; and how arguments are bound to it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from enum import Enum
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CellType, FunctionType
from typing import Any, NoReturn

from torchrepro.frontend.bytecode.program import Program
from torchrepro.frontend.graph_breaks import Where


class Signal(Enum):
    """Why a frame stops. The value in question is on top of the frame's stack."""

    RETURN = "return"
    YIELD = "yield"


class Frame:
    """The state of one call."""

    __slots__ = (
        *("builtins", "cells", "function", "globals", "handled", "index"),
        *("locals", "names", "parent", "program", "stack"),
    )

    def __init__(
        self,
        program: Program,
        globals: dict[str, Any],
        builtins: Mapping[str, Any],
        *,
        locals: dict[str, Any] | None = None,
        cells: dict[str, CellType] | None = None,
        names: MutableMapping[str, Any] | None = None,
        function: FunctionType | None = None,
        parent: Frame | None = None,
    ) -> None:
        self.program = program
        self.globals = globals
        self.builtins = builtins
        self.function = function
        self.locals: dict[str, Any] = {} if locals is None else locals
        """Bound variables only."""
        self.cells: dict[str, CellType] = {} if cells is None else cells
        """A variable of this function's own is here or in `locals`: CPython keeps the two in one slot."""
        self.names = names
        """Where a class body or a module keeps its variables; None in a function."""
        self.stack: list[Any] = []
        self.index = 0
        """Of the instruction that is about to run, or is running."""
        self.parent = parent
        self.handled: BaseException | None = None
        """The exception whose handler is running; those of outer handlers are on the stack, as in CPython."""

    @classmethod
    def of_function(cls, program: Program, function: FunctionType, locals: dict[str, Any]) -> Frame:
        """A function at its start: arguments bound, variables of outer functions known."""
        cells = dict(zip(program.code.co_freevars, function.__closure__ or (), strict=True))
        return cls(
            program,
            function.__globals__,
            builtins_of(function),
            locals=locals,
            cells=cells,
            function=function,
        )

    @property
    def where(self) -> Where:
        return where_of(self.program, self.index)

    def handle(self, error: BaseException) -> bool:
        """Go to the handler for what the current instruction raised; return whether there is one."""
        handler = self.program.instructions[self.index].handler
        if handler is None:
            return False
        del self.stack[handler.depth :]
        if handler.push_last:
            self.stack.append(self.index)
        self.stack.append(error)
        self.index = handler.target
        return True


def where_of(program: Program, index: int) -> Where:
    """The line of the user's that an instruction belongs to."""
    code, line = program.code, program.instructions[index].line
    return Where(code.co_filename, code.co_firstlineno if line is None else line, code.co_qualname)


def builtins_of(function: Any) -> Mapping[str, Any]:
    """What names in a function mean that its globals do not have."""
    found: Mapping[str, Any] = function.__builtins__
    return found


_NOTHING = (lambda: None).__code__


def bind_arguments(
    function: FunctionType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    defaults: Sequence[Any] | None = None,
    kwdefaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The local variables with which `function` starts. Defaults are those of the function unless given."""
    code = function.__code__
    names = code.co_varnames
    count = code.co_argcount
    star = code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    if not kwargs and not star and len(args) == count and not code.co_kwonlyargcount:
        return dict(zip(names, args, strict=False))
    if defaults is None:
        defaults = function.__defaults__ or ()
    if kwdefaults is None:
        kwdefaults = function.__kwdefaults__ or {}

    last = count + code.co_kwonlyargcount
    bound = dict(zip(names[:count], args, strict=False))
    extra: dict[str, Any] = {}
    by_keyword = names[code.co_posonlyargcount : last]
    for name, value in kwargs.items():
        if name in by_keyword and name not in bound:
            bound[name] = value
        elif star & CO_VARKEYWORDS and name not in by_keyword:
            extra[name] = value
        else:
            _refuse(function, args, kwargs, defaults, kwdefaults)
    if len(args) > count and not star & CO_VARARGS:
        _refuse(function, args, kwargs, defaults, kwdefaults)
    if len(bound) < last:
        first_default = count - len(defaults)
        for position, name in enumerate(names[:last]):
            if name not in bound:
                if first_default <= position < count:
                    bound[name] = defaults[position - first_default]
                elif position >= count and name in kwdefaults:
                    bound[name] = kwdefaults[name]
                else:
                    _refuse(function, args, kwargs, defaults, kwdefaults)
    if star & CO_VARARGS:
        bound[names[last]] = tuple(args[count:])
        last += 1
    if star & CO_VARKEYWORDS:
        bound[names[last]] = extra
    return bound


def _refuse(
    function: FunctionType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    defaults: Sequence[Any],
    kwdefaults: Mapping[str, Any],
) -> NoReturn:
    """Raise CPython's own error, by calling a function of the same parameters and no body."""
    code = function.__code__.replace(co_code=_NOTHING.co_code, co_consts=_NOTHING.co_consts)
    twin = FunctionType(code, {}, function.__name__, tuple(defaults), function.__closure__)
    twin.__kwdefaults__ = dict(kwdefaults)
    twin.__qualname__ = function.__qualname__
    twin(*args, **kwargs)
    raise AssertionError(f"the arguments of {function.__qualname__} do not bind here, but do in CPython")
