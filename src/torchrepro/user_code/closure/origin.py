"""Where code comes from: installed with Python and its packages, or written by the user."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch

from torchrepro.graph_text import resolver

_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


def is_installed_file(path: str | None) -> bool:
    """Whether a file belongs to Python or an installed package. What has no file is built in."""
    if path is None or path.startswith("<frozen"):
        return True
    if path.startswith("<"):
        return False  # typed in, or made by exec
    parts = Path(path).absolute()
    return bool(_PACKAGE_FOLDERS.intersection(parts.parts)) or any(
        parts.is_relative_to(root) for root in _installed_folders()
    )


def is_installed_module(name: str | None) -> bool:
    """Whether a module is imported from an installed package, as opposed to one of the user's files."""
    if name is None or name == "__main__":
        return name is None
    module = sys.modules.get(name)
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    if file is None and hasattr(module, "__path__"):
        return all(is_installed_file(path) for path in module.__path__)
    return is_installed_file(file)


def installed_path(value: Any) -> tuple[str, str] | None:
    """(module, qualified name) by which a class or function of an installed package is imported."""
    if isinstance(value, types.BuiltinFunctionType) or not isinstance(value, type | types.FunctionType):
        path = resolver.path_of(value) if callable(value) else None
        if path is not None:
            module, _, name = path.rpartition(".")
            return ("torch", path.removeprefix("torch.")) if module.startswith("torch") else (module, name)
    short = getattr(value, "__name__", None)
    if isinstance(short, str) and getattr(torch.nn, short, None) is value:
        return "torch", f"nn.{short}"
    home: Any = getattr(value, "__module__", None)
    qualified: Any = getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(qualified, str) or not is_installed_module(home):
        return None
    found: Any = sys.modules[home]
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return (home, qualified) if found is value else None


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    """Python's own, and torchrepro wherever it is: from a checkout it is no code of the user either."""
    own = Path(__file__).parents[2]
    return (own, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")))
