"""The user's source files and modules behind live objects: definitions, origins of globals."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure import is_installed_file, is_installed_module
from torchrepro.user_code.closure.scopes import (
    DEFINITIONS,
    Definition,
    Function,
    bound_names,
    own_nodes,
    owners_of_names,
)


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One parsed file."""

    path: str
    lines: list[str]
    owners: dict[ast.Name, ast.AST | None]
    """The scope whose local each name is; None for globals and builtins."""
    qualified: dict[Definition | ast.Lambda, str]
    """`__qualname__` of every function and class."""
    postpones_annotations: bool
    bound: dict[str, list[ast.stmt]]
    """The statements of the module itself that bind each global name, those inside `if` and `try` too."""

    def function(self, code: types.CodeType) -> Function | None:
        """Return the `def` or `lambda` compiled to this code; None where the file has changed since."""
        named = [
            node
            for node in self.qualified
            if not isinstance(node, ast.ClassDef)
            and getattr(node, "name", "<lambda>") == code.co_name
            and min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            == code.co_firstlineno
        ]
        if len(named) > 1:  # lambdas on one line: the expression begins where its first instruction does
            places = [
                (line, column)
                for line, end_line, column, end_column in code.co_positions()
                if line is not None and column is not None and (line, column) != (end_line, end_column)
            ]
            named = [
                node
                for node in named
                if isinstance(node, ast.Lambda)
                and (node.body.lineno, node.body.col_offset) == min(places, default=None)
            ]
        return named[0] if len({ast.dump(node) for node in named}) == 1 else None

    def class_(self, type_: type) -> ast.ClassDef | None:
        """Return the statement that made a class: of several of that name, the one around its methods."""
        found = [
            node
            for node, name in self.qualified.items()
            if isinstance(node, ast.ClassDef) and name == type_.__qualname__
        ]
        lines = [
            function.__code__.co_firstlineno
            for function in functions_of(type_)
            if function.__code__.co_filename == self.path
        ]
        around = [
            node for node in found if any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
        ]
        return next(reversed(around or found), None)


def source_file(path: str, what: str) -> SourceFile:
    """Parse the file at a path, or what `linecache` has under it; `what` names its user in an error."""
    lines = linecache.getlines(path)
    if not lines:
        raise CannotSerialise(
            f"{what} has no source text ({path})", next_step="define it in a file and run that"
        )
    return _parsed(path, "".join(lines))


def functions_of(owner: types.FunctionType | type) -> Iterator[types.FunctionType]:
    """Yield the functions in the body of a class, out of their wrappers; of a function, itself."""
    for value in vars(owner).values() if isinstance(owner, type) else (owner,):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        parts = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
        yield from (part for part in parts if isinstance(part, types.FunctionType))


@functools.lru_cache(maxsize=64)
def _parsed(path: str, text: str) -> SourceFile:
    try:
        tree = ast.parse(text)
    except SyntaxError as failure:
        raise CannotSerialise(
            f"{path} cannot be parsed any more ({failure.msg})", next_step="restore it, or run it again"
        ) from failure
    bound: dict[str, list[ast.stmt]] = {}
    for statement in own_nodes(tree):
        if isinstance(statement, ast.stmt) and not isinstance(statement, ast.If | ast.Try | ast.With):
            for name in dict.fromkeys(bound_names([statement])):
                bound.setdefault(name, []).append(statement)
    postponed = any(getattr(node, "module", None) == "__future__" for node in bound.get("annotations", ()))
    owners = owners_of_names(tree, postponed=postponed)
    return SourceFile(path, text.split("\n"), owners, dict(_qualified(tree, "")), postponed, bound)


def _qualified(node: ast.AST, prefix: str) -> Iterator[tuple[Definition | ast.Lambda, str]]:
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, (*DEFINITIONS, ast.Lambda)):
            name = prefix + getattr(child, "name", "<lambda>")
            yield child, name
            inside = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
        yield from _qualified(child, inside)


@dataclass(frozen=True, eq=False)
class UserModule:
    """The namespace in which a piece of user code looks up its globals."""

    globals: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.globals.get("__name__", "__main__"))

    @property
    def path(self) -> str:
        return str(self.globals.get("__file__") or f"<{self.name}>")

    def bindings(self, name: str) -> list[ast.stmt]:
        """Return the statements that bind a global, else the imports of everything.

        There are none where the module has no text (typed in, a notebook).
        """
        try:
            bound = self.file(name).bound
        except CannotSerialise:
            return []
        return bound.get(name) or bound.get("*", [])

    def file(self, what: str) -> SourceFile:
        return source_file(self.path, f"{self.name}.{what}")

    def absolute(self, statement: ast.ImportFrom) -> str:
        """Return the module that a `from ... import` names, relative ones included."""
        name, package = statement.module or "", self.globals.get("__package__")
        return importlib.util.resolve_name("." * statement.level + name, package) if package else name


def import_of(module: UserModule, name: str) -> tuple[str, str] | None:
    """Return (module, attribute) that a global was imported from, if it still is what the import bound."""
    value = module.globals[name]
    for statement in reversed(module.bindings(name)):
        if not isinstance(statement, ast.ImportFrom):
            continue
        source = module.absolute(statement)
        for alias in statement.names:
            attribute = name if alias.name == "*" else alias.name
            bound = name if alias.name == "*" else alias.asname or alias.name
            if bound == name and getattr(sys.modules.get(source), attribute, EMPTY) is value:
                return source, attribute
    return None


def dotted_imports(module: UserModule, name: str) -> list[str]:
    """Return the submodules that `import package.part` statements load under a package's name."""
    return [
        alias.name
        for statement in module.bindings(name)
        if isinstance(statement, ast.Import)
        for alias in statement.names
        if alias.asname is None and alias.name.startswith(f"{name}.") and is_installed_module(alias.name)
    ]


def module_of(value: types.FunctionType | type) -> UserModule:
    """Return the module in which a function or class of the user was defined."""
    if isinstance(value, types.FunctionType):
        return UserModule(value.__globals__)
    for function in functions_of(value):
        if function.__globals__.get("__name__") == value.__module__:
            return UserModule(function.__globals__)
    found = sys.modules.get(value.__module__)
    if found is None:
        raise CannotSerialise(
            f"the class {value.__qualname__} is from {value.__module__}, a module that is not loaded",
            next_step="import it before saving",
        )
    return UserModule(vars(found))


def is_user_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not is_installed_file(value.__code__.co_filename)


def is_user_class(value: Any) -> bool:
    return isinstance(value, type) and not is_installed_module(value.__module__)


def file_of(value: types.FunctionType | type) -> SourceFile:
    """Return the file with the definition of a function or class."""
    if isinstance(value, types.FunctionType):
        return source_file(value.__code__.co_filename, value.__qualname__)
    for function in functions_of(value):
        # A dataclass has methods that were made by exec and have no text.
        if function.__module__ == value.__module__ and linecache.getlines(function.__code__.co_filename):
            return source_file(function.__code__.co_filename, value.__qualname__)
    return source_file(module_of(value).path, value.__qualname__)


def definition_of(value: types.FunctionType | type) -> Function | ast.ClassDef | None:
    """Return the statement that made a function or class, None where there is none."""
    file = file_of(value)
    return file.class_(value) if isinstance(value, type) else file.function(value.__code__)


@dataclass(frozen=True)
class Home:
    """Where the user's code itself has an object: a global, or an attribute of a global or a class."""

    owner: UserModule | type
    name: str
    path: str = ""
    """What follows the name of the owner: `.method`, or `.fn` for what a decorated function wraps."""


def home_of(value: Any) -> Home | None:
    """Return the home of a function, class or decorated function; None for one that only variables hold."""
    named = value if is_user_class(value) else inner_function(value)
    if named is None:
        return None
    module = module_of(named)
    first, *rest = named.__qualname__.split(".")
    if not rest:
        for name in [first, *(name for name, held in module.globals.items() if held is value)]:
            held, path = module.globals.get(name), ""
            while held is not None and held is not value:
                held, path = getattr(held, "fn", None), f"{path}.fn"
            if held is value:
                return Home(module, name, path)
        return None
    held = owner = module.globals.get(first)
    for part in rest:
        held = vars(held).get(part) if isinstance(held, type) else None
        held = held.__func__ if isinstance(held, staticmethod | classmethod) else held
    if held is value and isinstance(owner, type):
        return Home(owner, first, f".{'.'.join(rest)}")
    # A method of a local class is recognised by the cell that `super()` uses.
    around = cells_of(value).get("__class__") if isinstance(value, types.FunctionType) else None
    owner = None if around is None else contents(around)
    if isinstance(owner, type) and vars(owner).get(rest[-1]) is value:
        return Home(owner, owner.__name__, f".{rest[-1]}")
    return None


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the variables that a function closes over."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


EMPTY = object()


def contents(cell: types.CellType) -> Any:
    """Return what is in a cell; `EMPTY` for a variable that is not bound yet, or no longer."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def inner_function(value: Any) -> types.FunctionType | None:
    """Return the user's function inside a decorated object, such as a Triton kernel or a cached function."""
    for _ in range(8):
        if value is None or is_user_function(value):
            return value  # type: ignore[no-any-return]
        value = getattr(value, "fn", None) or getattr(value, "__wrapped__", None)
    return None
