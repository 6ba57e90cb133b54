"""Facts about live values on which the way to write them depends, and the locals that are made together.

A local is a function or class made inside a function. It is made again by a factory, whose parameters are the
variables that it closes over.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure import installed_path, is_installed_file, is_installed_module
from torchrepro.user_code.closure.scopes import DEFINITIONS, Definition, bound_names
from torchrepro.user_code.closure.user_modules import (
    SourceFile,
    UserModule,
    cells_of,
    contents,
    definition_of,
    file_of,
    functions_of,
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
    """Return whether an expression is a literal that still gives this value."""
    try:
        # The text distinguishes 1 from True, and 0.0 from -0.0.
        return _is_plain(value) and repr(ast.literal_eval(node)) == repr(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_plain(value: Any) -> bool:
    """Return whether a value is numbers, strings and containers of them."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, (*value.keys(), *value.values())))
    return type(value) in _SCALARS


def is_made_by_package(value: Any) -> bool:
    """Return whether a value is an object made by a package, no data: its own statement recreates it."""
    if holds_tensors(value):
        return False
    if isinstance(value, types.FunctionType):
        # A wrapper that a package has put around a function of the user, as `torch.func.jacfwd` does.
        return is_installed_file(value.__code__.co_filename) and installed_path(value) is None
    home = type(value).__module__
    return is_installed_module(home) and home not in ("builtins", "collections")


def holds_tensors(value: Any) -> bool:
    """Return whether recreating a value would give other numbers."""
    if isinstance(value, torch.nn.Module):
        return any(True for _ in (*value.parameters(), *value.buffers()))
    return isinstance(value, torch.Tensor)


def has_state(value: Any) -> bool:
    """Return whether a function carries data that running its definition again would lose."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return False
    node = definition_of(value)
    rebound = _rebound_names(node) if node is not None else set()
    return any(
        name in rebound or isinstance(contents(cell), list | dict | set)
        for name, cell in cells_of(value).items()
    )


def is_decorated(value: Any) -> bool:
    """Return whether an object is the result of a `def`'s decorators, not bound by any other statement."""
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
            yield "__name__", value.__name__  # a decorator has changed the name
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
            # Attributes that the user's code set; decorators and metaclasses recreate the rest.
            made_here = getattr(item, "__qualname__", "").startswith(f"{value.__qualname__}.")
            if name in written:
                changed = _is_plain(item) and not same_literal(written[name], item)
            else:
                changed = name not in bound and (
                    _is_plain(item) or (is_user_function(item) and not made_here)
                )
            if changed:
                yield name, item


@dataclass(frozen=True, eq=False)
class Defined:
    """What a definition of the user made, and the variables that it closes over."""

    value: Any
    file: SourceFile
    module: UserModule
    node: Definition | ast.Lambda
    cells: dict[str, types.CellType] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the definition binds; a lambda binds a name that none of its variables has."""
        if not isinstance(self.node, ast.Lambda):
            return self.node.name
        return "function" + "_" * ("function" in self.cells)


class Locals:
    """The locals met so far: those that a call has to make together are found among them."""

    def __init__(self) -> None:
        self._found: dict[int, Defined] = {}

    def discover(self, value: Any, depth: int = _DEPTH) -> None:
        """Remember the locals that are reachable from a value through cells, attributes and containers."""
        if isinstance(value, list | tuple | set | frozenset | dict) and depth:
            for item in value.values() if isinstance(value, dict) else value:
                self.discover(item, depth - 1)
        if id(value) in self._found or not (is_user_function(value) or is_user_class(value)):
            return
        if "<locals>" not in value.__qualname__ and not getattr(value, "__closure__", None):
            return
        local = self._found[id(value)] = local_of(value)
        for item in [*map(contents, local.cells.values()), *vars(value).values()]:
            self.discover(item, depth)

    def made_with(self, value: Any) -> list[Defined]:
        """Return the locals that one call has to make, this one among them.

        They refer to each other, or one of them rebinds a variable that another one reads: then they share
        the cell itself, not only what is in it. CannotSerialise where two of them would have one name.
        """
        self.discover(value)
        reach = self._reachable(id(value))
        group = [
            local for key, local in self._found.items() if key in reach and id(value) in self._reachable(key)
        ] or [local_of(value)]
        bound: dict[str, Any] = {}
        for local in group:
            cells = ((name, contents(cell)) for name, cell in local.cells.items())
            for name, held in [(local.name, local.value), *cells]:
                if bound.setdefault(name, held) is not held:
                    raise CannotSerialise(
                        f"{local.value.__qualname__} is made together with other functions, and {name} means"
                        " different things in them (a decorated function that calls itself, or two of one"
                        " name)",
                        next_step="rename one of them, or define it at the top level of its module",
                    )
        return group

    def _reachable(self, start: int) -> set[int]:
        """Return the keys of all locals that must exist before one can be made, its own included."""
        seen: set[int] = set()
        waiting = [start]
        while waiting:
            key = waiting.pop()
            if key not in seen and key in self._found:
                seen.add(key)
                waiting += (id(contents(cell)) for cell in self._found[key].cells.values())
                waiting += (other for other in self._found if self._share_a_rebound_cell(key, other))
        return seen

    def _share_a_rebound_cell(self, one: int, other: int) -> bool:
        pair = self._found[one], self._found[other]
        shared = set.intersection(*({id(cell) for cell in local.cells.values()} for local in pair))
        rebound = {id(local.cells.get(name)) for local in pair for name in _rebound_names(local.node)}
        return bool(shared & rebound)


def local_of(value: types.FunctionType | type) -> Defined:
    """Return the definition and the cells of a function or class; CannotSerialise where its text is gone."""
    file, node = file_of(value), definition_of(value)
    if node is None:
        raise CannotSerialise(
            f"{value.__module__}.{value.__qualname__} is not found in {file.path}",
            next_step="run the program again if that file has changed since; code made by exec has no source",
        )
    cells = {name: cell for function in functions_of(value) for name, cell in cells_of(function).items()}
    cells.pop("__class__", None)  # the class statement makes that one
    bases = value.__bases__ if isinstance(value, type) else ()
    cells |= {base.__name__: types.CellType(base) for base in bases if "<locals>" in base.__qualname__}
    return Defined(value, file, module_of(value), node, cells)


def _rebound_names(node: ast.AST) -> set[str]:
    """Return the variables of enclosing functions that a definition assigns to."""
    return {name for child in ast.walk(node) if isinstance(child, ast.Nonlocal) for name in child.names}
