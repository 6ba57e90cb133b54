"""Builtins that ask about their caller: the answer is the stepped frame, not the interpreter's own."""

from __future__ import annotations
import __future__

import builtins
from collections.abc import Callable, Mapping, Sequence
from operator import index
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.classes import build_class
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
    """Call what is not stepped, with the globals of the stepped frame: `type` reads `__module__` there."""
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
        value = interpreter.load_local(frame, name)
    else:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in frame.cells:
        raise RuntimeError("super(): __class__ cell not found")
    start = _contents(interpreter, frame, "__class__", "super(): empty __class__ cell")
    return interpreter.call_function(super, (start, value), {})


def _contents(interpreter: Interpreter, frame: Frame, name: str, otherwise: str) -> Any:
    try:
        return interpreter.load_cell(frame.cells[name])
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
    """With the `from __future__ import` of the stepped function, not of this file."""
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
