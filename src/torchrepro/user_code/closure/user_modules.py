"""The user's modules behind live objects: their globals, their file, and how each global came about."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from dataclasses import dataclass
from typing import Any

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.files import SourceFile, functions_of_class, source_file
from torchrepro.user_code.closure.origin import is_installed_file, is_installed_module


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
        """The statements that bind a global; none where the module has no text (typed in, a notebook)."""
        try:
            return self.file(name).bindings(name)
        except CannotSerialise:
            return []

    def file(self, what: str) -> SourceFile:
        return source_file(self.path, f"{self.name}.{what}")

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The module that a `from ... import` names, relative ones included."""
        if not statement.level:
            return statement.module or ""
        package = str(self.globals.get("__package__") or "")
        base = package.split(".")[: len(package.split(".")) - statement.level + 1]
        return ".".join([*base, *([statement.module] if statement.module else [])])


@dataclass(frozen=True)
class ImportedFrom:
    """A global that `from module import attribute` has bound."""

    module: str
    attribute: str


def import_of(module: UserModule, name: str) -> ImportedFrom | None:
    """Where a global was imported from, if the import is what still stands there."""
    value = module.globals[name]
    for statement in reversed(module.bindings(name)):
        if not isinstance(statement, ast.ImportFrom):
            continue
        source = module.absolute(statement)
        found = sys.modules.get(source)
        for alias in statement.names:
            attribute = name if alias.name == "*" else alias.name
            bound = name if alias.name == "*" else alias.asname or alias.name
            if found is not None and bound == name and getattr(found, attribute, _MISSING) is value:
                return ImportedFrom(source, attribute)
    return None


def dotted_imports(module: UserModule, name: str) -> list[str]:
    """The submodules that `import package.part` statements load under a package's name."""
    return [
        alias.name
        for statement in module.bindings(name)
        if isinstance(statement, ast.Import)
        for alias in statement.names
        if alias.asname is None and alias.name.startswith(f"{name}.") and is_installed_module(alias.name)
    ]


def module_of(value: types.FunctionType | type) -> UserModule:
    """The module in which a function or class of the user was defined."""
    if isinstance(value, types.FunctionType):
        return UserModule(value.__globals__)
    for function in functions_of_class(value):
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
    """The file with the definition of a function or class."""
    if isinstance(value, types.FunctionType):
        return source_file(value.__code__.co_filename, value.__qualname__)
    for function in functions_of_class(value):
        # A dataclass has methods that were made by exec and have no text.
        if function.__module__ == value.__module__ and linecache.getlines(function.__code__.co_filename):
            return source_file(function.__code__.co_filename, value.__qualname__)
    return source_file(module_of(value).path, value.__qualname__)


@dataclass(frozen=True)
class Home:
    """Where the user's code itself has an object: a global, or an attribute of a global or a class."""

    owner: UserModule | type
    name: str
    path: str = ""
    """What follows the name of the owner: `.method`, or `.fn` for what a decorated function wraps."""


def home_of(value: Any) -> Home | None:
    """The home of a function, class or decorated function; None for one that lives in variables alone."""
    named = value if is_user_class(value) else inner_function(value)
    if named is None:
        return None
    module = module_of(named)
    first, *rest = named.__qualname__.split(".")
    if not rest:
        return _global_with(module, first, value)
    held = module.globals.get(first)
    if isinstance(held, type) and _attribute(held, rest) is value:
        return Home(held, first, f".{'.'.join(rest)}")
    owner = _class_around(value)
    return None if owner is None else Home(owner, owner.__name__, f".{rest[-1]}")


def _global_with(module: UserModule, name: str, value: Any) -> Home | None:
    for other in [name, *(other for other, held in module.globals.items() if held is value)]:
        held, path = module.globals.get(other), ""
        while held is not None and held is not value:
            held, path = getattr(held, "fn", None), f"{path}.fn"
        if held is value:
            return Home(module, other, path)
    return None


def _attribute(owner: Any, path: list[str]) -> Any:
    for part in path:
        owner = vars(owner).get(part) if isinstance(owner, type) else None
        owner = owner.__func__ if isinstance(owner, staticmethod | classmethod) else owner
    return owner


def _class_around(value: Any) -> type | None:
    """The class whose method this is, told by the cell that `super()` uses."""
    if not isinstance(value, types.FunctionType) or "__class__" not in value.__code__.co_freevars:
        return None
    owner = (value.__closure__ or ())[value.__code__.co_freevars.index("__class__")].cell_contents
    return owner if isinstance(owner, type) and vars(owner).get(value.__name__) is value else None


def inner_function(value: Any) -> types.FunctionType | None:
    """The user's function inside a decorated object, such as a Triton kernel or a cached function."""
    for _ in range(8):
        if is_user_function(value):
            return value  # type: ignore[no-any-return]
        deeper = getattr(value, "fn", None) or getattr(value, "__wrapped__", None)
        if deeper is None:
            return None
        value = deeper
    return None


_MISSING = object()
