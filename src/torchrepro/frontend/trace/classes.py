"""Classes: written in Python or in C, the user's or of a library that does not change; what they define."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch

_HEAP_TYPE = 1 << 9
_LIBRARY = str(Path(sysconfig.get_path("stdlib")).resolve()) + "/"
OWN_MODULES = ("torchrepro.frontend.", "torchrepro.second_opinion.")
"""The tracer and what wraps it: never traced itself."""
_TORCH = str(Path(torch.__file__).resolve().parent) + "/"

IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
"""Functions and methods that are written in C."""

_CLASSES_IN_C = frozenset(
    {
        functools.partial,
        type(functools.lru_cache(lambda: None)),
        *(getattr(sys.modules["collections"], name) for name in ("deque", "defaultdict", "OrderedDict")),
    }
)


def is_python_class(kind: Any) -> bool:
    """Whether a class was made by a `class` statement, or a call that does the same. Tensors are apart."""
    return _is_python_class(kind)


@functools.cache
def _is_python_class(kind: Any) -> bool:
    if kind is types.SimpleNamespace:
        return True  # nothing but a `__dict__`
    if not kind.__flags__ & _HEAP_TYPE or kind in _CLASSES_IN_C or issubclass(kind, torch.Tensor):
        return False
    if kind.__module__.startswith(OWN_MODULES):
        return False  # what the trace puts in place of an object is not stepped itself
    # A class in C has no namespace that Python code filled: every one made by `class` knows its module by a
    # plain entry and can be subclassed without a `tp_new` of its own, or has a function of Python in it.
    space = kind.__dict__
    return "__module__" in space and (
        "__dict__" in space
        or "__slots__" in space
        or "__static_attributes__" in space
        or any(isinstance(item, types.FunctionType) for item in space.values())
        or any(is_python_class(base) for base in kind.__bases__)
    )


@functools.cache
def is_trusted_file(file: str) -> bool:
    """Code of torch and of Python's own library: it does not change while the program runs."""
    if file.startswith("<frozen"):
        return True
    path = str(Path(file).resolve()) if file else ""
    if path.startswith(_TORCH):
        return True
    return path.startswith(_LIBRARY) and "site-packages" not in path


def is_trusted_space(space: dict[str, Any]) -> bool:
    """Whether a module's globals are those of a trusted file."""
    name = space.get("__name__")
    file = space.get("__file__")
    if isinstance(file, str):
        return is_trusted_file(file)
    return name == "builtins"


@functools.cache
def is_trusted_class(kind: Any) -> bool:
    module = sys.modules.get(kind.__module__)
    if module is None:
        return False
    return not is_python_class(kind) or is_trusted_space(vars(module))


def static_lookup(kind: type, name: str) -> Any:
    """What a class and its bases define under a name, without running any descriptor; `MISSING` otherwise."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
