"""Questions about live values and the statements they came from, on which the way to write them depends."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

import torch

from torchrepro.user_code.closure.files import SourceFile
from torchrepro.user_code.closure.locals import contents, rebinds
from torchrepro.user_code.closure.origin import installed_path, is_installed_file, is_installed_module
from torchrepro.user_code.closure.scopes import bound_names
from torchrepro.user_code.closure.user_modules import UserModule, file_of

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


def is_plain(value: Any) -> bool:
    """Whether a value is numbers, strings and containers of them."""
    if type(value) in (list, tuple, set, frozenset):
        return all(is_plain(item) for item in value)
    if type(value) is dict:
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in _SCALARS


def same_literal(node: ast.expr, value: Any) -> bool:
    """Whether an expression is a literal that still gives this value."""
    if not is_plain(value):
        return False
    try:
        written = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return repr(written) == repr(value)  # tells 1 from True, and 0.0 from -0.0


def literal_changed(node: ast.expr, value: Any) -> bool:
    """Whether plain data is no longer what its statement says."""
    return is_plain(value) and not same_literal(node, value)


def is_literal_assignment(statement: ast.stmt | None, value: Any) -> bool:
    """`name = literal`, which still gives this value."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name()], value=expression)
            | ast.AnnAssign(target=ast.Name(), value=ast.expr() as expression)
        ):
            return same_literal(expression, value)
    return False


def is_simple_assignment(statement: ast.stmt | None, name: str) -> bool:
    """`name = expression`, which can stand alone elsewhere."""
    if isinstance(statement, ast.Assign):
        return len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None and set(bound_names([statement])) == {name}
    return False


def is_made_by_package(value: Any) -> bool:
    """Whether a value is an object of an installed package that its own statement makes best: no data."""
    kind = type(value)
    if isinstance(value, torch.Tensor) or holds_tensors(value):
        return False
    if isinstance(value, types.FunctionType):
        # What a package has put around a function of the user, as `torch.func.jacfwd` does.
        return is_installed_file(value.__code__.co_filename) and installed_path(value) is None
    return is_installed_module(kind.__module__) and kind.__module__ not in ("builtins", "collections")


def holds_tensors(value: Any) -> bool:
    """Whether making a value anew would give other numbers."""
    if isinstance(value, torch.nn.Module):
        return any(True for _ in value.parameters()) or any(True for _ in value.buffers())
    return isinstance(value, torch.Tensor)


def has_state(value: Any) -> bool:
    """Whether a function carries data that running its definition again would lose."""
    if not isinstance(value, types.FunctionType):
        return False
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        held = contents(cell)
        if rebinds(value.__code__, name) or isinstance(held, list | dict | set):
            return True
    return False


def definition_of(value: types.FunctionType | type) -> ast.AST | None:
    """The statement that made a function or class, None where there is none."""
    if isinstance(value, type):
        return file_of(value).class_(value)
    return file_of(value).function(value.__code__)


def user_module_attributes(
    nodes: set[ast.AST], module: UserModule, file: SourceFile
) -> Iterator[tuple[ast.Attribute, ast.Name]]:
    """`module.name` wherever the module is one of the user's, with the name it begins with."""
    for node in nodes:
        if not isinstance(node, ast.Attribute):
            continue
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or file.names.owners.get(root, root) is not None:
            continue
        if _is_user_module(live_value(module, node.value)) and not _is_user_module(live_value(module, node)):
            yield node, root


def live_value(module: UserModule, node: ast.expr) -> Any:
    """What a dotted name of a module stands for now, None where nothing."""
    if isinstance(node, ast.Attribute):
        return getattr(live_value(module, node.value), node.attr, None)
    return module.globals.get(node.id) if isinstance(node, ast.Name) else None


def _is_user_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not is_installed_module(value.__name__)
