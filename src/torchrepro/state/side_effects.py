"""Plain Python state that a call may change: closure variables, attributes, counters, caches.

Capture must replay such side effects; a lost one is as wrong as a wrong number. Only data is looked at, and
only data that belongs to the model: globals are shared by everything in the process, except those of a module
that was made for one run (a source closure).
"""

from __future__ import annotations

import types
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_DEPTH = 4


def python_state(model: Any) -> dict[str, Any]:
    """Copies of the plain data in a function's closure, a torch module's attributes or a module's globals."""
    found: dict[str, Any] = {}
    if isinstance(model, torch.nn.Module):
        for name, child in model.named_modules():
            _collect_attributes(child, name, found)
    elif isinstance(model, types.MethodType):
        found.update(python_state(model.__func__))
        owner = model.__self__
        found.update(python_state(owner) if isinstance(owner, torch.nn.Module) else _attributes(owner))
    elif isinstance(model, types.FunctionType):
        for name, cell in zip(model.__code__.co_freevars, model.__closure__ or (), strict=True):
            _keep(f"closure.{name}", _contents(cell), found)
        for name, value in vars(model).items():
            _keep(name, value, found)
    elif isinstance(model, types.ModuleType):
        for name, value in vars(model).items():
            if not name.startswith("__"):
                _keep(name, value, found)
    return found


def _collect_attributes(module: torch.nn.Module, prefix: str, found: dict[str, Any]) -> None:
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training":
            _keep(f"{prefix}.{name}" if prefix else name, value, found)


def _attributes(owner: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        _keep(f"self.{name}", value, found)
    return found


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was never bound
        return None


def _keep(path: str, value: Any, found: dict[str, Any]) -> None:
    copied = _copy_of_data(value, _DEPTH)
    if copied is not _NOT_DATA:
        found[path] = copied


_NOT_DATA = object()


def _copy_of_data(value: Any, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if depth == 0:
        return _NOT_DATA
    if isinstance(value, (list, tuple)):
        return [item for item in (_copy_of_data(v, depth - 1) for v in value) if item is not _NOT_DATA]
    if isinstance(value, dict):
        copies = {
            key: _copy_of_data(item, depth - 1) for key, item in value.items() if isinstance(key, _PLAIN)
        }
        return {key: item for key, item in copies.items() if item is not _NOT_DATA}
    return _NOT_DATA
