"""What was set on functions and classes after their definitions, or has changed since."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

from torchrepro.user_code.closure.facts import is_plain, literal_changed
from torchrepro.user_code.closure.scopes import bound_names
from torchrepro.user_code.closure.user_modules import is_user_class, is_user_function

_NOT_KEPT = ("__wrapped__", "__signature__", "__annotations__")


def changed_attributes(value: Any, node: ast.AST) -> Iterator[tuple[str, Any]]:
    """(name, value) of every attribute that running the definition again would not give."""
    if is_user_function(value):
        yield from _of_function(value, node)
    elif is_user_class(value) and isinstance(node, ast.ClassDef):
        yield from _of_class(value, node)


def _of_function(value: types.FunctionType, node: ast.AST) -> Iterator[tuple[str, Any]]:
    for name, item in vars(value).items():
        if name not in _NOT_KEPT and not name.startswith("_torch"):
            yield name, item
    if value.__name__ != getattr(node, "name", "<lambda>"):
        yield "__name__", value.__name__  # a decorator has given the function another one


def _of_class(value: type, node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
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
            if literal_changed(written[name], item):
                yield name, item
        elif name not in bound and _was_set(value, item):
            yield name, item


def _was_set(class_: type, item: Any) -> bool:
    """Set by the user's code. The rest is made by decorators and metaclasses, which will make it again."""
    if is_user_function(item):
        return not item.__qualname__.startswith(f"{class_.__qualname__}.")
    return is_plain(item)
