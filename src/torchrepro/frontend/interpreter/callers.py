"""Builtins that ask about their caller: the answer is the interpreted frame. And the `class` statement."""

from __future__ import annotations
import __future__

import builtins
import types
from collections.abc import Callable, Mapping, Sequence
from operator import index
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import program_of
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


def call_from(frame: Frame, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call what is not interpreted, with the globals of the frame: `type` reads `__module__` there."""
    return FunctionType(_CALL, frame.globals)(function, args, kwargs)


_CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


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


def _locals(interpreter: Interpreter, frame: Frame) -> Any:
    return locals_of(frame)


def _globals(interpreter: Interpreter, frame: Frame) -> Any:
    return frame.globals


def _vars(interpreter: Interpreter, frame: Frame, *values: Any) -> Any:
    return vars(*values) if values else locals_of(frame)


def _dir(interpreter: Interpreter, frame: Frame, *values: Any) -> Any:
    return dir(*values) if values else sorted(locals_of(frame))


def _compile(
    interpreter: Interpreter,
    frame: Frame,
    source: Any,
    filename: Any,
    mode: Any,
    flags: int = 0,
    dont_inherit: bool = False,
    optimize: int = -1,
    **options: Any,
) -> Any:
    """With the `from __future__ import` of the interpreted function, not of this file."""
    if not dont_inherit:
        flags = index(flags) | (frame.program.code.co_flags & _FUTURE)
    return compile(source, filename, mode, flags, True, optimize, **options)


def _running(run: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """`eval` or `exec`."""

    def answer(
        interpreter: Interpreter,
        frame: Frame,
        source: Any,
        globals: Any = None,
        locals: Any = None,
        **options: Any,
    ) -> Any:
        if globals is None:
            globals = frame.globals
            locals = locals_of(frame) if locals is None else locals
        if isinstance(source, str | bytes | bytearray | memoryview):
            text = source.lstrip(" \t") if mode == "eval" and isinstance(source, str) else source
            source = _compile(interpreter, frame, text, "<string>", mode)
        return run(source, globals, locals, **options)

    return answer


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
    inner = Frame.of_function(program_of(body.__code__), body, {})
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


ABOUT_THE_CALLER: Mapping[Any, Callable[..., Any]] = {
    builtins.locals: _locals,
    builtins.globals: _globals,
    builtins.vars: _vars,
    builtins.dir: _dir,
    builtins.compile: _compile,
    builtins.eval: _running(builtins.eval, "eval"),
    builtins.exec: _running(builtins.exec, "exec"),
    builtins.__build_class__: build_class,
}
"""Called with the interpreter, the calling frame and the arguments."""
