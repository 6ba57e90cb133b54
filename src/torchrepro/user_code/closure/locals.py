"""Functions and classes made inside functions: their cells, and which of them have to be made together.

The function that makes locals anew: its parameters are the variables that they close over.
"""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.files import SourceFile, functions_of_class
from torchrepro.user_code.closure.scopes import DEFINITIONS
from torchrepro.user_code.closure.snippets import INDENT, Snippet
from torchrepro.user_code.closure.user_modules import (
    UserModule,
    file_of,
    home_of,
    inner_function,
    is_user_class,
    is_user_function,
    module_of,
)

_DEPTH = 4


@dataclass(frozen=True, eq=False)
class Local:
    """A function or class of the user that no global name leads to, with what it closes over."""

    value: types.FunctionType | type
    file: SourceFile
    module: UserModule
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    cells: dict[str, types.CellType]
    decorated: Any = None
    """What the decorators have made of it, where that is wanted and no function of the user."""

    @property
    def result(self) -> Any:
        """The object that running the definition gives."""
        return self.value if self.decorated is None else self.decorated

    @property
    def name(self) -> str:
        return "function" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def visible(self) -> dict[str, Any]:
        """The variables of the functions around it that can be told: its cells, and the bases of a class."""
        bases = self.value.__bases__ if isinstance(self.value, type) else ()
        return {**{base.__name__: base for base in bases}, **self.cells}


def local_of(value: types.FunctionType | type) -> Local:
    """The definition and the cells of a function or class; CannotSerialise where its text is gone."""
    file = file_of(value)
    node = file.class_(value) if isinstance(value, type) else file.function(value.__code__)
    if node is None:
        raise CannotSerialise(
            f"{value.__module__}.{value.__qualname__} is not found in {file.path}",
            next_step="run the program again if that file has changed since; code made by exec has no source",
        )
    return Local(value, file, module_of(value), node, dict(_cells(value)))


def decorated_local(value: Any) -> Local | None:
    """The definition behind an object that a package's decorator has made of a local function."""
    function = inner_function(value)
    if function is None or function is value:
        return None
    local = local_of(function)
    return replace(local, decorated=value) if getattr(local.node, "decorator_list", ()) else None


def is_decorated(value: Any) -> bool:
    """Whether an object is what the decorators of a `def` have made: not bound by any other statement."""
    if isinstance(value, types.FunctionType | type) or decorated_local(value) is None:
        return False
    home = home_of(value)
    if home is None or isinstance(home.owner, type):
        return True
    return any(isinstance(statement, DEFINITIONS) for statement in home.owner.bindings(home.name))


def groups_of(values: Iterable[Any]) -> list[list[Local]]:
    """The locals reachable through cells from the given values, those first that others are made from.

    Two stand in one group, and so are made by one call, if they refer to each other or if one of them binds a
    variable anew that the other reads: then they have to share the cell itself, not only what is in it.
    """
    locals_: dict[int, Local] = {}
    for value in values:
        _discover(value, locals_, _DEPTH)
    edges = {key: set(_references(local, locals_)) for key, local in locals_.items()}
    for first, other in _sharing(locals_):
        edges[first].add(other)
        edges[other].add(first)
    reach = {key: _reachable(key, edges) for key in edges}
    groups: dict[frozenset[int], None] = {}
    for key in sorted(locals_, key=lambda key: len(reach[key])):
        groups[frozenset([key, *(other for other in reach[key] if key in reach[other])])] = None
    return [[local for key, local in locals_.items() if key in group] for group in groups]


def contents(cell: types.CellType) -> Any:
    """What is in a cell; `EMPTY` for a variable that is not bound yet, or any more."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


EMPTY = object()


def rebinds(code: types.CodeType, name: str) -> bool:
    """Whether code, or a function in it, assigns to a variable of the function around it."""
    if name not in code.co_freevars:
        return False
    own = any(
        instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval == name
        for instruction in dis.get_instructions(code)
    )
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return own or any(rebinds(const, name) for const in inner)


def _cells(value: types.FunctionType | type) -> Iterator[tuple[str, types.CellType]]:
    functions = functions_of_class(value) if isinstance(value, type) else [value]
    for function in functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":  # the class statement makes that one
                yield name, cell


def _discover(value: Any, found: dict[int, Local], depth: int) -> None:
    if isinstance(value, list | tuple | set | frozenset | dict) and depth:
        for item in value.values() if isinstance(value, dict) else value:
            _discover(item, found, depth - 1)
    if id(value) in found or not (is_user_function(value) or is_user_class(value)):
        return
    if "<locals>" not in value.__qualname__ and not getattr(value, "__closure__", None):
        return
    local = local_of(value)
    found[id(value)] = local
    for cell in local.cells.values():
        _discover(contents(cell), found, depth)
    bases = value.__bases__ if isinstance(value, type) else ()
    for other in [*bases, *vars(value).values()]:
        if isinstance(value, types.FunctionType) or isinstance(other, type):
            _discover(other, found, depth)


def _references(local: Local, locals_: dict[int, Local]) -> Iterator[int]:
    held = [contents(cell) for cell in local.cells.values()]
    held += local.value.__bases__ if isinstance(local.value, type) else ()
    yield from (id(value) for value in held if id(value) in locals_ and value is not local.value)


def _sharing(locals_: dict[int, Local]) -> Iterator[tuple[int, int]]:
    users: dict[int, list[int]] = {}
    rebound: set[int] = set()
    for key, local in locals_.items():
        functions = functions_of_class(local.value) if isinstance(local.value, type) else iter([local.value])
        codes = [function.__code__ for function in functions]
        for name, cell in local.cells.items():
            users.setdefault(id(cell), []).append(key)
            if any(rebinds(code, name) for code in codes):
                rebound.add(id(cell))
    for cell_id in rebound:
        first, *others = users[cell_id]
        yield from ((first, other) for other in others)


def _reachable(start: int, edges: dict[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    waiting = list(edges[start])
    while waiting:
        key = waiting.pop()
        if key not in seen:
            seen.add(key)
            waiting.extend(edges[key])
    return seen


def definition_text(node: ast.AST, piece: Snippet, name: str, *, depth: int = 0) -> str:
    """A definition as a statement; a lambda is given a name."""
    if not isinstance(node, ast.Lambda):
        return piece.text(depth)
    text = piece.text(depth).strip()
    return f"{INDENT * depth}{name} = " + (f"({text})" if len(piece.lines) > 1 else text)


def factory_text(name: str, group: list[Local], pieces: list[Snippet], variables: list[str]) -> str:
    """`def make_f(state): def f(): ...; return f`, for all members of a group at once."""
    members = {id(local.value): index for index, local in enumerate(group)}
    unbound = [
        variable
        for variable in variables
        if all(contents(local.cells[variable]) is EMPTY for local in group if variable in local.cells)
    ]
    given = [variable for variable in variables if variable not in unbound]
    inside = {
        variable: members[id(contents(cell))]
        for local in group
        for variable, cell in local.cells.items()
        if id(contents(cell)) in members
    }
    bound = [local.name for local in group]
    clean = (
        len(set(bound)) == len(bound)
        and not set(bound) & set(variables)
        and all(bound[index] == variable for variable, index in inside.items())
    )
    lines = [f"def {name}({', '.join(given if clean else [f'given_{each}' for each in given])}):"]
    lines += [f"{INDENT}{variable} = None\n{INDENT}del {variable}" for variable in unbound]
    results = []
    for index, (local, piece) in enumerate(zip(group, pieces, strict=True)):
        result = local.name if clean else f"made_{index}"
        lines.append(definition_text(local.node, piece, result, depth=1))
        if not clean and not isinstance(local.node, ast.Lambda):
            lines.append(f"{INDENT}{result} = {local.name}")
        results.append(result)
        lines.append("")
    if not clean:
        lines += [f"{INDENT}{variable} = given_{variable}" for variable in given]
        lines += [f"{INDENT}{variable} = made_{index}" for variable, index in inside.items()]
    lines.append(f"{INDENT}return {', '.join(results)}")
    return "\n".join(lines)
