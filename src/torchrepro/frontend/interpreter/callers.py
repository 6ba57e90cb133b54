"""Builtins that ask about their caller: the answer is the interpreted frame. And the `class` statement."""

from __future__ import annotations
import __future__

import types
from collections.abc import Mapping, Sequence
from opcode import opmap
from types import BuiltinFunctionType, CellType, FunctionType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.frame import Frame

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def locals_of(frame: Frame) -> Any:
    """What `locals()` gives."""
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
    """Call what is not interpreted, from code like the frame's: `type` reads `__module__` there too."""
    if type(function) is not BuiltinFunctionType or function not in ABOUT_THE_CALLER:
        return FunctionType(CALL, frame.globals)(function, args, kwargs)
    flags = _CALLER.co_flags | frame.program.code.co_flags & _FUTURE
    code = _CALLER.replace(co_consts=(function, args, kwargs), co_flags=flags)
    return eval(code, frame.globals, locals_of(frame))


def super_of(interpreter: Interpreter, frame: Frame) -> Any:
    """`super()`: the class is a variable shared with the class body, the object is the first argument."""
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
    """What `builtins.__build_class__` does, with the body interpreted."""
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
    """`type.__new__` puts the class where `super()` finds it; a metaclass may have lost the way there."""
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
