"""Facts about live values on which the way to write them depends, and the locals that are made together.

A local is a function or class made inside a function. It is made again by a factory, whose parameters are the
variables that it closes over.
"""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.origin import installed_path, is_installed_file, is_installed_module
from torchrepro.user_code.closure.scopes import DEFINITIONS, Function, bound_names
from torchrepro.user_code.closure.user_modules import (
    SourceFile,
    UserModule,
    definition_of,
    file_of,
    functions_of_class,
    home_of,
    inner_function,
    is_user_class,
    is_user_function,
    module_of,
)

_DEPTH = 4
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_NOT_KEPT = ("__wrapped__", "__signature__", "__annotations__")


def same_literal(node: ast.expr, value: Any) -> bool:
    """Whether an expression is a literal that still gives this value."""
    if not _is_plain(value):
        return False
    try:
        written = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return repr(written) == repr(value)  # tells 1 from True, and 0.0 from -0.0


def _is_plain(value: Any) -> bool:
    """Whether a value is numbers, strings and containers of them."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, (*value.keys(), *value.values())))
    return type(value) in _SCALARS


def assigned_expression(statement: ast.stmt | None) -> ast.expr | None:
    """Return the expression of `name = expression`, which can be moved; None for other statements."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name()], value=expression)
            | ast.AnnAssign(target=ast.Name(), value=ast.expr() as expression)
        ):
            return expression
    return None


def is_made_by_package(value: Any) -> bool:
    """Whether a value is an object of an installed package that its own statement makes best: no data."""
    kind = type(value)
    if holds_tensors(value):
        return False
    if isinstance(value, types.FunctionType):
        # What a package has put around a function of the user, as `torch.func.jacfwd` does.
        return is_installed_file(value.__code__.co_filename) and installed_path(value) is None
    return is_installed_module(kind.__module__) and kind.__module__ not in ("builtins", "collections")


def holds_tensors(value: Any) -> bool:
    """Whether making a value again would give other numbers."""
    if isinstance(value, torch.nn.Module):
        return any(True for _ in value.parameters()) or any(True for _ in value.buffers())
    return isinstance(value, torch.Tensor)


def has_state(value: Any) -> bool:
    """Whether a function carries data that running its definition again would lose."""
    if not isinstance(value, types.FunctionType):
        return False
    return any(
        _rebinds(value.__code__, name) or isinstance(contents(cell), list | dict | set)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    )


def is_decorated(value: Any) -> bool:
    """Whether an object is what the decorators of a `def` have made: not bound by any other statement."""
    if isinstance(value, types.FunctionType | type):
        return False
    function = inner_function(value)
    if function is None or not getattr(definition_of(function), "decorator_list", ()):
        return False
    home = home_of(value)
    if home is None or isinstance(home.owner, type):
        return True
    return any(isinstance(statement, DEFINITIONS) for statement in home.owner.bindings(home.name))


def changed_attributes(value: Any, node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of every attribute that running the definition again would not give."""
    if is_user_function(value):
        for name, item in vars(value).items():
            if name not in _NOT_KEPT and not name.startswith("_torch"):
                yield name, item
        if value.__name__ != getattr(node, "name", "<lambda>"):
            yield "__name__", value.__name__  # a decorator has given the function another one
    elif is_user_class(value) and isinstance(node, ast.ClassDef):
        written = {
            target.id: statement.value
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        bound = set(bound_names(node.body))
        for name, item in vars(value).items():
            if name.startswith(("__", "_abc_", "_torch")):
                continue
            if name in written:
                if _is_plain(item) and not same_literal(written[name], item):
                    yield name, item
            elif name not in bound and _was_set(value, item):
                yield name, item


def _was_set(class_: type, item: Any) -> bool:
    """Whether the user's code set it. The rest is made by decorators and metaclasses, which make it again."""
    if is_user_function(item):
        return not item.__qualname__.startswith(f"{class_.__qualname__}.")
    return _is_plain(item)


@dataclass(frozen=True, eq=False)
class Local:
    """A function or class of the user that no global name leads to, with what it closes over."""

    value: types.FunctionType | type
    file: SourceFile
    module: UserModule
    node: Function | ast.ClassDef
    cells: dict[str, types.CellType]

    @property
    def name(self) -> str:
        """What its definition binds; a lambda binds a name that none of its variables has."""
        if not isinstance(self.node, ast.Lambda):
            return self.node.name
        return "function" + "_" * ("function" in self.cells)

    @property
    def visible(self) -> dict[str, Any]:
        """The variables of the functions around it that can be told: its cells, and the bases of a class."""
        bases = self.value.__bases__ if isinstance(self.value, type) else ()
        return {**{base.__name__: base for base in bases}, **self.cells}


def local_of(value: types.FunctionType | type) -> Local:
    """Return the definition and the cells of a function or class; CannotSerialise where its text is gone."""
    file, node = file_of(value), definition_of(value)
    if node is None:
        raise CannotSerialise(
            f"{value.__module__}.{value.__qualname__} is not found in {file.path}",
            next_step="run the program again if that file has changed since; code made by exec has no source",
        )
    cells = {
        name: cell
        for function in _functions_of(value)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if name != "__class__"  # the class statement makes that one
    }
    return Local(value, file, module_of(value), node, cells)


def groups_of(values: Iterable[Any]) -> list[list[Local]]:
    """Return the locals reachable through cells from the given values, those first that others are made from.

    Two are in one group, and so are made by one call, if they refer to each other or if one of them rebinds a
    variable that the other reads: then they have to share the cell itself, not only what is in it.
    """
    locals_: dict[int, Local] = {}
    for value in values:
        _discover(value, locals_, _DEPTH)
    edges = {key: {id(value) for value in _made_from(local)} & set(locals_) for key, local in locals_.items()}
    for cell_id in {id(cell) for local in locals_.values() for cell in _rebound(local)}:
        sharing = [key for key, local in locals_.items() if cell_id in map(id, local.cells.values())]
        for key in sharing:
            edges[key].update(sharing)
    reach = {key: _reachable(key, edges) for key in edges}
    groups: dict[frozenset[int], None] = {}
    for key in sorted(locals_, key=lambda key: len(reach[key])):
        groups[frozenset(other for other in reach[key] if key in reach[other])] = None
    return [[local for key, local in locals_.items() if key in group] for group in groups]


EMPTY = object()


def contents(cell: types.CellType) -> Any:
    """Return what is in a cell; `EMPTY` for a variable that is not bound yet, or any more."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def require_distinct_names(group: list[Local]) -> None:
    """Refuse locals that cannot be defined in one function body, where two things would have one name."""
    bound: dict[str, Any] = {}
    for local in group:
        for name, value in [
            (local.name, local.value),
            *((name, contents(cell)) for name, cell in local.cells.items()),
        ]:
            if bound.setdefault(name, value) is not value:
                raise CannotSerialise(
                    f"{local.value.__qualname__} is made together with other functions, and {name} means"
                    " different things in them (a decorated function that calls itself, or two of one name)",
                    next_step="rename one of them, or define it at the top level of its module",
                )


def _functions_of(value: types.FunctionType | type) -> list[types.FunctionType]:
    return list(functions_of_class(value)) if isinstance(value, type) else [value]


def _made_from(local: Local) -> list[Any]:
    """Return what must exist before a local can be made: the contents of its cells, and its bases."""
    bases = local.value.__bases__ if isinstance(local.value, type) else ()
    return [*map(contents, local.cells.values()), *bases]


def _discover(value: Any, found: dict[int, Local], depth: int) -> None:
    if isinstance(value, list | tuple | set | frozenset | dict) and depth:
        for item in value.values() if isinstance(value, dict) else value:
            _discover(item, found, depth - 1)
    if id(value) in found or not (is_user_function(value) or is_user_class(value)):
        return
    if "<locals>" not in value.__qualname__ and not getattr(value, "__closure__", None):
        return
    local = found[id(value)] = local_of(value)
    attributes = vars(value).values()
    for other in [
        *_made_from(local),
        *(item for item in attributes if isinstance(value, types.FunctionType) or isinstance(item, type)),
    ]:
        _discover(other, found, depth)


def _rebound(local: Local) -> Iterator[types.CellType]:
    codes = [function.__code__ for function in _functions_of(local.value)]
    yield from (cell for name, cell in local.cells.items() if any(_rebinds(code, name) for code in codes))


def _rebinds(code: types.CodeType, name: str) -> bool:
    """Whether code, or a function in it, assigns to a variable of the function around it."""
    if name not in code.co_freevars:
        return False
    own = any(
        instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval == name
        for instruction in dis.get_instructions(code)
    )
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return own or any(_rebinds(const, name) for const in inner)


def _reachable(start: int, edges: dict[int, set[int]]) -> set[int]:
    """Return all keys that edges lead to from one, itself included."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        key = waiting.pop()
        if key not in seen:
            seen.add(key)
            waiting.extend(edges[key])
    return seen
