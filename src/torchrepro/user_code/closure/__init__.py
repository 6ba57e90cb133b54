"""The user's code that a bundle needs, as one text: `source_closure` writes it, `load_source` runs it.

The text defines the given functions and classes with everything that their code refers to and nothing else:
installed packages are imported, the user's own modules are copied statement by statement, variables of
enclosing functions become parameters of a factory, and data has the value it has now. It runs as a module of
its own, known to `sys.modules` and `linecache` as a file would be.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import linecache
import os
import sys
import sysconfig
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from torchrepro.graph_text import resolver
from torchrepro.nouns.errors import BundleError

_PREFIX = "torchrepro_source_"
_NUMBERS = itertools.count(2)


@dataclass(frozen=True)
class SourceClosure:
    """One self-contained module as text."""

    text: str
    names: tuple[str, ...]
    """What the given objects are called in it, in their order."""
    notes: tuple[str, ...]
    """What a reader must know: code that could not be followed, attributes that are not data."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that the text finds by these names when it is run: those of modules, and large ones."""


def source_closure(objects: Sequence[Any]) -> SourceClosure:
    """Write the text that defines functions, classes, decorated functions (Triton kernels) and objects.

    CannotSerialise, naming it, where something has no source or is neither data nor code.
    """
    from torchrepro.user_code.closure.writer import ClosureWriter  # reading a bundle needs none of it

    writer = ClosureWriter()
    names = writer.write(list(objects))
    return SourceClosure(writer.text.finished(), names, tuple(writer.notes), writer.tensors)


def load_source(text: str, tensors: Mapping[str, torch.Tensor] = MappingProxyType({})) -> types.ModuleType:
    """Run a text, with the tensors kept next to it, and return the module. Runs the user's code.

    The same text gives the same module, unless there are tensors, which may differ.
    """
    if tensors:
        return fresh_source(text, tensors)
    name = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]
    return sys.modules.get(name) or _run(text, name, tensors)


def fresh_source(text: str, tensors: Mapping[str, torch.Tensor] = MappingProxyType({})) -> types.ModuleType:
    """Run a text again and return a new module that shares no state with earlier ones."""
    base = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]
    return _run(text, f"{base}_{next(_NUMBERS)}", tensors)


def forget_source(module: types.ModuleType) -> None:
    """Remove a module, so that its tensors can be freed. Its text stays, for tracebacks."""
    sys.modules.pop(module.__name__, None)


def is_source_module(name: str) -> bool:
    """Return whether a module was made by running a source text: no import finds it in another process."""
    return name.startswith(_PREFIX)


def _run(text: str, name: str, tensors: Mapping[str, torch.Tensor]) -> types.ModuleType:
    path = f"<{name}>"
    # Without a modification time linecache never looks for the file on the disk.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = types.ModuleType(name)
    module.__file__ = _file_with(text) if "__file__" in text else path
    module.__dict__["_tensor"] = tensors.__getitem__
    sys.modules[name] = module
    try:
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    except Exception as failure:
        del sys.modules[name]
        raise BundleError(
            f"the user's code in the bundle cannot be run: {type(failure).__name__}: {failure}",
            next_step="install what its imports name; torchrepro show --source prints it",
        ) from failure
    return module


def _file_with(text: str) -> str:
    """Write a text whose code reads its own file, as the `uuid` of an inductor pass does, until exit."""
    descriptor, path = tempfile.mkstemp(prefix="torchrepro-source-", suffix=".py")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    owner = os.getpid()
    atexit.register(lambda: Path(path).unlink(missing_ok=True) if os.getpid() == owner else None)
    return path


# Where code comes from: installed with Python and its packages, or written by the user.

_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


def is_installed_file(path: str | None) -> bool:
    """Return whether a file belongs to Python or an installed package. What has no file is built in."""
    if path is None or path.startswith("<frozen"):
        return True
    if path.startswith("<"):
        return False  # entered interactively, or made by exec
    parts = Path(path).absolute()
    return bool(_PACKAGE_FOLDERS.intersection(parts.parts)) or any(
        parts.is_relative_to(root) for root in _installed_folders()
    )


def is_installed_module(name: str | None) -> bool:
    """Return whether a module is imported from an installed package, not from one of the user's files."""
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
    """Return (module, qualified name) by which a class or function of an installed package is imported."""
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
    """Return the folders of Python and of torchrepro, which even in a checkout is not the user's code."""
    own = Path(__file__).parents[2]
    return (own, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")))
