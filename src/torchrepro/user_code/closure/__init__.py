"""The user's code that a bundle needs, as one text: `source_closure` writes it, `load_source` runs it.

The text defines the given functions and classes with everything that their code refers to and nothing else:
installed packages are imported, the user's own modules are copied statement by statement, variables of
enclosing functions become parameters of a factory, and data has the value it has now. It runs as a module of
its own, known to `sys.modules` and `linecache` as a file would be.
"""

from __future__ import annotations

import hashlib
import itertools
import linecache
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from torchrepro.nouns.errors import BundleError

_PREFIX = "torchrepro_source_"
_NUMBERS = itertools.count(2)


@dataclass(frozen=True)
class SourceClosure:
    """One self-contained module as text."""

    text: str
    names: tuple[str, ...]
    """What the given objects are called in it, in their order."""
    packages: tuple[str, ...]
    """What must be installed to run it, next to Python itself."""
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
    text, packages = writer.text.finished()
    return SourceClosure(text, names, packages, tuple(writer.notes), writer.tensors)


def load_source(text: str, tensors: Mapping[str, torch.Tensor] = MappingProxyType({})) -> types.ModuleType:
    """Run a text, with the tensors kept next to it, and return the module. Runs the user's code.

    The same text gives the same module, unless there are tensors, which may be others.
    """
    if tensors:
        return fresh_source(text, tensors)
    name = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]
    return sys.modules.get(name) or _run(text, name, tensors)


def fresh_source(text: str, tensors: Mapping[str, torch.Tensor] = MappingProxyType({})) -> types.ModuleType:
    """Run a text again and return a module that shows nothing of what was done to another one."""
    base = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]
    return _run(text, f"{base}_{next(_NUMBERS)}", tensors)


def forget_source(module: types.ModuleType) -> None:
    """Let go of a module and of the tensors in it. Its text stays, for tracebacks."""
    sys.modules.pop(module.__name__, None)


def is_source_module(name: str) -> bool:
    """Whether a module was made by running a source text: no import finds it in another process."""
    return name.startswith(_PREFIX)


def _run(text: str, name: str, tensors: Mapping[str, torch.Tensor]) -> types.ModuleType:
    path = f"<{name}>"
    # Without a modification time linecache never looks for the file on the disk.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module = types.ModuleType(name)
    module.__file__ = path
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
