"""Variables: local, shared with other functions, global, and those of a class body."""

from __future__ import annotations

from types import CellType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.graph_breaks import Break, BreakKind
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
    """Whether the slot of a local variable holds its cell: where a comprehension is inlined (from 3.12)."""
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
        raise Break(
            BreakKind.UNSUPPORTED, f"{name} names a variable of {frame.where.function} and an outer one"
        )
    frame.cells[name] = CellType(frame.locals.pop(name)) if name in frame.locals else CellType()


@instruction("COPY_FREE_VARS")
def copy_free_vars(op: Interpreter, frame: Frame, count: int) -> None:
    """Nothing: a frame is made with the cells of its function."""


@instruction("LOAD_DEREF")
def load_deref(op: Interpreter, frame: Frame, name: str) -> None:
    try:
        frame.stack.append(op.variables.load_cell(frame.cells[name]))
        return
    except ValueError:
        pass  # raised below, so that the error has no `__context__`
    raise _unbound(frame, name)


@instruction("DELETE_DEREF")
def delete_deref(op: Interpreter, frame: Frame, name: str) -> None:
    load_deref(op, frame, name)
    frame.stack.pop()
    op.variables.delete_cell(frame.cells[name])


def _unbound(frame: Frame, name: str) -> NameError:
    if name in frame.program.code.co_cellvars:
        return UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value"
        )
    return NameError(
        f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
    )


# Class bodies and modules. Their namespace is whatever `__prepare__` returned.


def _names(frame: Frame) -> Any:
    if frame.names is None:
        raise SystemError(f"no locals in {frame.where}")
    return frame.names


@instruction("LOAD_NAME")
def load_name(op: Interpreter, frame: Frame, name: str) -> None:
    _load_from(op, frame, _names(frame), name)


@instruction("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(op: Interpreter, frame: Frame, name: str) -> None:
    _load_from(op, frame, frame.stack.pop(), name)


def _load_from(op: Interpreter, frame: Frame, namespace: Any, name: str) -> None:
    try:
        frame.stack.append(op.items.get(namespace, name))
        return
    except KeyError:
        pass  # looked for below, so that an error has no `__context__`
    frame.stack.append(op.variables.load_global(frame, name))


@instruction("LOAD_CLASSDEREF")
def load_classderef(op: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(_names(frame))
    load_from_dict_or_deref(op, frame, name)


@instruction("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(op: Interpreter, frame: Frame, name: str) -> None:
    try:
        frame.stack.append(op.items.get(frame.stack.pop(), name))
        return
    except KeyError:
        pass
    load_deref(op, frame, name)


@instruction("DELETE_NAME")
def delete_name(op: Interpreter, frame: Frame, name: str) -> None:
    try:
        op.items.delete(_names(frame), name)
        return
    except KeyError:
        pass
    raise NameError(f"name '{name}' is not defined", name=name)


@instruction("SETUP_ANNOTATIONS")
def setup_annotations(op: Interpreter, frame: Frame, argument: Any) -> None:
    if not op.items.contains(_names(frame), "__annotations__"):
        op.items.set(_names(frame), "__annotations__", {})


INSTRUCTIONS.update(
    {
        "LOAD_CLOSURE": lambda op, frame, name: frame.stack.append(frame.cells[name]),
        "STORE_DEREF": lambda op, frame, name: op.variables.store_cell(frame.cells[name], frame.stack.pop()),
        "LOAD_GLOBAL": lambda op, frame, name: frame.stack.append(op.variables.load_global(frame, name)),
        "STORE_GLOBAL": lambda op, frame, name: op.variables.store_global(frame, name, frame.stack.pop()),
        "DELETE_GLOBAL": lambda op, frame, name: op.variables.delete_global(frame, name),
        "STORE_NAME": lambda op, frame, name: op.items.set(_names(frame), name, frame.stack.pop()),
        "LOAD_LOCALS": lambda op, frame, argument: frame.stack.append(_names(frame)),
    }
)
