"""Frame: a function that is being interpreted, as CPython keeps it; and how arguments are bound to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any, cast

from torchrepro.frontend.bytecode.program import Handler, Program, program_of
from torchrepro.frontend.graph_breaks import Where


class Signal(Enum):
    """Why a frame stops. The value in question is on top of the frame's stack."""

    RETURN = "return"
    YIELD = "yield"


class Frame:
    """The state of one call, at first at its start: arguments bound, variables of outer functions known."""

    __slots__ = (
        *("builtins", "cells", "globals", "handled", "index", "locals"),
        *("names", "parent", "program", "stack"),
    )

    def __init__(self, function: FunctionType, locals: dict[str, Any]) -> None:
        code = function.__code__
        self.program = program_of(code)
        self.globals: dict[str, Any] = function.__globals__
        self.builtins: Mapping[str, Any] = cast(Any, function).__builtins__
        self.locals = locals
        """Bound variables only."""
        self.cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        """A variable of this function's own is here or in `locals`: CPython keeps the two in one slot."""
        self.names: Any = None
        """Where a class body or a module keeps its variables; None in a function."""
        self.stack: list[Any] = []
        self.index = 0
        """Of the instruction that is about to run, or is running."""
        self.parent: Frame | None = None
        self.handled: BaseException | None = None
        """The exception whose handler is running; those of outer handlers are on the stack, as in CPython."""

    @property
    def where(self) -> Where:
        return where_of(self.program, self.index)

    def handlers(self, index: int) -> Iterator[Handler]:
        """Yield the handlers of the user's (`except`, `finally`, `with`) around an instruction."""
        handler = self.program.instructions[index].handler
        while handler is not None:
            first = self.program.instructions[handler.target]
            if first.name == "PUSH_EXC_INFO":
                yield handler
            handler = first.handler

    def handle(self, error: BaseException) -> bool:
        """Jump to the handler for what the current instruction raised; return whether there is one."""
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
    """Return the line of the user's code that an instruction belongs to."""
    code, line = program.code, program.instructions[index].position.lineno
    return Where(code.co_filename, code.co_firstlineno if line is None else line, code.co_qualname)


_LOCALS = (lambda: locals()).__code__


def bind_arguments(
    function: FunctionType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    defaults: tuple[Any, ...] | None = None,
    kwdefaults: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the local variables with which `function` starts. Defaults are the function's unless given.

    CPython binds them, with its own errors, by a call of a function with the same parameters.
    """
    code = function.__code__
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    star = code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    if not kwargs and not star and counts[2] == 0 and len(args) == counts[0]:
        return dict(zip(code.co_varnames, args, strict=False))
    last = counts[0] + counts[2] + star.bit_count()
    twin = FunctionType(_binding(*counts, star, code.co_varnames[:last]), globals(), function.__name__)
    twin.__qualname__ = function.__qualname__
    twin.__defaults__ = function.__defaults__ if defaults is None else defaults
    twin.__kwdefaults__ = function.__kwdefaults__ if kwdefaults is None else kwdefaults
    bound: dict[str, Any] = twin(*args, **kwargs)
    return bound


@lru_cache(maxsize=4096)
def _binding(
    positional: int, positional_only: int, keyword_only: int, star: int, names: tuple[str, ...]
) -> CodeType:
    return _LOCALS.replace(
        co_argcount=positional,
        co_posonlyargcount=positional_only,
        co_kwonlyargcount=keyword_only,
        co_varnames=names,
        co_nlocals=len(names),
        co_flags=_LOCALS.co_flags | star,
    )
