"""The `class` statement: makes the namespace, steps the body in it, calls the metaclass."""

from __future__ import annotations

import types
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.reading import program_of
from torchrepro.frontend.interpreter.frame import Frame

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


def build_class(
    interpreter: Interpreter, frame: Frame, body: FunctionType, name: str, /, *bases: Any, **keywords: Any
) -> Any:
    """What `builtins.__build_class__` does, with the body stepped."""
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
    made = interpreter.call_function(metaclass, (name, resolved, namespace), keywords)
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
