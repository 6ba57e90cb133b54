"""Variables: local, shared with other functions, global, and those of a class body."""

from __future__ import annotations

from types import CellType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.graph_breaks import Unsupported
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.table import INSTRUCTIONS, instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


@instruction("LOAD_FAST")
def load_fast(op: Interpreter, frame: Frame, name: str) -> None:
    if name not in frame.locals and _own_cell(frame, name):
        frame.stack.append(frame.cells[name])
    else:
        frame.stack.append(op.variables.load_local(frame, name))


@instruction("STORE_FAST")
def store_fast(op: Interpreter, frame: Frame, name: str) -> None:
    value = frame.stack.pop()
    if value is NULL or type(value) is CellType or name in frame.cells:
        _restore_slot(frame, name, value)
    else:
        frame.locals[name] = value


@instruction("DELETE_FAST")
def delete_fast(op: Interpreter, frame: Frame, name: str) -> None:
    op.variables.load_local(frame, name)
    del frame.locals[name]


@instruction("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(op: Interpreter, frame: Frame, name: str) -> None:
    if _own_cell(frame, name):
        frame.stack.append(frame.cells.pop(name))
    else:
        frame.stack.append(frame.locals.pop(name, NULL))


def _own_cell(frame: Frame, name: str) -> bool:
    """Return whether a local's slot holds its cell, as where a comprehension is inlined (from 3.12)."""
    return name in frame.cells and name in frame.program.code.co_cellvars


def _restore_slot(frame: Frame, name: str, value: Any) -> None:
    """Store what `LOAD_FAST_AND_CLEAR` saved before an inlined comprehension: nothing, a cell, or a value."""
    if _own_cell(frame, name):
        del frame.cells[name]
    if value is NULL:
        frame.locals.pop(name, None)
    elif type(value) is CellType and name in frame.program.code.co_cellvars:
        frame.locals.pop(name, None)
        frame.cells[name] = value
    else:
        frame.locals[name] = value


@instruction("MAKE_CELL")
def make_cell(op: Interpreter, frame: Frame, name: str) -> None:
    if name in frame.program.code.co_freevars:
        # As in `[lambda: x for x in x]`, inlined, where the last `x` belongs to an outer function.
        raise Unsupported(f"{name} names a variable of {frame.where.function} and an outer one")
    frame.cells[name] = CellType(frame.locals.pop(name)) if name in frame.locals else CellType()


def _load_shared(op: Interpreter, frame: Frame, name: str) -> Any:
    try:
        return op.variables.load_cell(frame.cells[name])
    except ValueError:
        pass  # raised below, so that the error has no `__context__`
    where = "where it is not associated with a value"
    if name in frame.program.code.co_cellvars:
        raise UnboundLocalError(f"cannot access local variable '{name}' {where}")
    raise NameError(f"cannot access free variable '{name}' {where} in enclosing scope")


@instruction("DELETE_DEREF")
def delete_deref(op: Interpreter, frame: Frame, name: str) -> None:
    _load_shared(op, frame, name)
    op.variables.delete_cell(frame.cells[name])


# Class bodies and modules. Their namespace (`Frame.names`) is whatever `__prepare__` returned.


def _load_from(op: Interpreter, frame: Frame, namespace: Any, name: str, otherwise: Any) -> None:
    try:
        found = op.items.get(namespace, name)
    except KeyError:
        found = NULL
    # Outside of the handler, so that an error has no `__context__`.
    frame.stack.append(otherwise(op, frame, name) if found is NULL else found)


def _load_global(op: Interpreter, frame: Frame, name: str) -> Any:
    return op.variables.load_global(frame, name)


@instruction("DELETE_NAME")
def delete_name(op: Interpreter, frame: Frame, name: str) -> None:
    try:
        op.items.delete(frame.names, name)
        return
    except KeyError:
        pass
    raise NameError(f"name '{name}' is not defined", name=name)


@instruction("SETUP_ANNOTATIONS")
def setup_annotations(op: Interpreter, frame: Frame, argument: Any) -> None:
    if not op.items.contains(frame.names, "__annotations__"):
        op.items.set(frame.names, "__annotations__", {})


INSTRUCTIONS.update(
    {
        # A frame is created with the cells of its function.
        "COPY_FREE_VARS": lambda op, frame, count: None,
        "LOAD_CLOSURE": lambda op, frame, name: frame.stack.append(frame.cells[name]),
        "LOAD_DEREF": lambda op, frame, name: frame.stack.append(_load_shared(op, frame, name)),
        "STORE_DEREF": lambda op, frame, name: op.variables.store_cell(frame.cells[name], frame.stack.pop()),
        "LOAD_GLOBAL": lambda op, frame, name: frame.stack.append(op.variables.load_global(frame, name)),
        "STORE_GLOBAL": lambda op, frame, name: op.variables.store_global(frame, name, frame.stack.pop()),
        "DELETE_GLOBAL": lambda op, frame, name: op.variables.delete_global(frame, name),
        "LOAD_NAME": lambda op, frame, name: _load_from(op, frame, frame.names, name, _load_global),
        "LOAD_FROM_DICT_OR_GLOBALS": lambda op, frame, name: _load_from(
            op, frame, frame.stack.pop(), name, _load_global
        ),
        "LOAD_CLASSDEREF": lambda op, frame, name: _load_from(op, frame, frame.names, name, _load_shared),
        "LOAD_FROM_DICT_OR_DEREF": lambda op, frame, name: _load_from(
            op, frame, frame.stack.pop(), name, _load_shared
        ),
        "STORE_NAME": lambda op, frame, name: op.items.set(frame.names, name, frame.stack.pop()),
        "LOAD_LOCALS": lambda op, frame, argument: frame.stack.append(frame.names),
    }
)
