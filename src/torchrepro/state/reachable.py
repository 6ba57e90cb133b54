"""What a call can reach: every object that plain Python code may change through a function and its arguments.

From the function on, it goes through closures, defaults, attributes, classes, containers, and the globals
that the user's own code names. Each mutable object found is a `Holder`: its contents can be read, and put
back in place.
"""

from __future__ import annotations

import dis
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchrepro.nouns.errors import TorchReproError
from torchrepro.state.holders import (
    ATOMS,
    Holder,
    bytes_of,
    cell_of,
    class_attribute,
    generator_state,
    mapping,
    name_in,
    partial_of,
    sequence,
    set_items,
    slot_values,
)
from torchrepro.user_code.closure.origin import is_installed_module

LIMIT = 200_000
"""Objects beyond which a call's state counts as too large to look after."""


@dataclass(frozen=True, eq=False)
class Reach:
    """All holders that a call can reach, and what it could change that nobody can put back."""

    holders: tuple[Holder, ...]
    opaque: tuple[str, ...] = ()


def reach_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reach:
    """Everything that calling `function(*args, **kwargs)` can reach."""
    walk = _Walk()
    walk.queue.append(("self" if hasattr(function, "__self__") else "function", function))
    walk.queue.extend((f"inputs[{index}]", value) for index, value in enumerate(args))
    walk.queue.extend((f"inputs[{name!r}]", value) for name, value in kwargs.items())
    walk.run()
    return Reach(tuple(walk.holders), tuple(walk.opaque))


@dataclass(eq=False)
class _Walk:
    """One walk, breadth first, so that an object goes by its shortest path."""

    queue: deque[tuple[str, Any]] = field(default_factory=deque)
    holders: list[Holder] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    _seen: dict[int, Any] = field(default_factory=dict)
    _seen_names: set[tuple[int, str]] = field(default_factory=set)

    def run(self) -> None:
        while self.queue:
            path, value = self.queue.popleft()
            if isinstance(value, ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if len(self._seen) > LIMIT:
                raise TorchReproError(
                    f"the call can reach more than {LIMIT} objects",
                    next_step="watch a smaller function, or leave out --whole",
                )
            self._visit(path, value)

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor | np.ndarray | types.ModuleType):
            return
        if isinstance(value, tuple | frozenset):
            self.queue.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self.queue.append((path, value.__self__))
            self.queue.append((path, value.__func__))
        elif isinstance(value, functools.partial):
            self._hold(Holder(path, *partial_of(value)))
        elif isinstance(value, property | classmethod | staticmethod):
            inner = (value.fget, value.fset) if isinstance(value, property) else (value.__func__,)
            self.queue.extend((path, item) for item in inner)
        elif isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, random.Random | torch.Generator | np.random.Generator):
            self._hold(Holder(path, *generator_state(value), draws=True))
        else:
            self._object(path, value)

    def _hold(self, holder: Holder) -> None:
        self.holders.append(holder)
        for index, (key, value) in enumerate(holder.read()):
            self.queue.append((holder.path_of(index, key), value))

    def _object(self, path: str, value: Any) -> None:
        """Containers by their items, and instances of other classes by their attributes; some are both."""
        if isinstance(value, list | deque):
            self._hold(Holder(path, *sequence(value)))
        elif isinstance(value, dict):
            self._hold(Holder(path, *mapping(value)))
            for index, key in enumerate(dict.keys(value)):
                self.queue.append((f"{path}[#{index}]", key))
        elif isinstance(value, set | bytearray):
            self._hold(Holder(path, *(set_items(value) if isinstance(value, set) else bytes_of(value))))
        elif isinstance(value, Iterator) and not hasattr(value, "__dict__"):
            self.opaque.append(path)
        kind: Any = type(value)
        if not _has_state(kind):
            return
        if hasattr(value, "_orig_mod") and isinstance(value, torch.nn.Module):  # compiled: what stands inside
            self.queue.append((path, value._orig_mod))
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._hold(Holder(path, *mapping(attributes), attributes=True))
        slots = _slots(type(value))
        if slots:
            self._hold(Holder(path, *slot_values(value, slots), attributes=True))
        self.queue.append((type(value).__name__, type(value)))

    def _function(self, path: str, function: types.FunctionType) -> None:
        original = getattr(function, "_torchdynamo_orig_callable", None)
        if original is not None:  # compiled: behind it is the compiler, which is not the user's state
            self.queue.append((path, original))
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._hold(Holder("closure", *cell_of(name, cell), attributes=True))
        self.queue.append((f"{path}.__defaults__", function.__defaults__))
        self.queue.append((f"{path}.__kwdefaults__", function.__kwdefaults__))
        self._hold(Holder(path, *mapping(vars(function)), attributes=True))
        if not _is_users(function.__module__):
            return
        names = names_in(function.__code__)
        self._names("globals", function.__globals__, names.globals_)
        for name in names.globals_:
            module = function.__globals__.get(name)
            if isinstance(module, types.ModuleType) and _is_users(module.__name__):
                self._names(module.__name__, vars(module), names.attributes)

    def _names(self, path: str, namespace: dict[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if self._is_new(namespace, name):
                self._hold(Holder(path, *name_in(namespace, name), attributes=True))

    def _is_new(self, owner: Any, name: str) -> bool:
        known = (id(owner), name) in self._seen_names
        self._seen_names.add((id(owner), name))
        return not known

    def _class(self, path: str, kind: type) -> None:
        """Attributes that are data, and the methods, which have closures and globals of their own."""
        for base in kind.__mro__:
            if base is object or not _is_users(base.__module__):
                continue
            for name, value in vars(base).items():
                if isinstance(value, types.FunctionType | property | classmethod | staticmethod):
                    self.queue.append((f"{base.__name__}.{name}", value))
                elif _is_class_data(name, value) and self._is_new(base, name):
                    self._hold(Holder(base.__name__, *class_attribute(base, name), attributes=True))


@dataclass(frozen=True)
class Names:
    """Names that a piece of code uses."""

    globals_: tuple[str, ...]
    attributes: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """The globals and the attributes that the code names, nested functions included."""
    globals_: dict[str, None] = {}
    attributes: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"):
            globals_[instruction.argval] = None
        elif instruction.opname in ("LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD", "DELETE_ATTR"):
            attributes[instruction.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_in(constant)
            globals_.update(dict.fromkeys(inner.globals_))
            attributes.update(dict.fromkeys(inner.attributes))
    return Names(tuple(globals_), tuple(attributes))


@functools.lru_cache(maxsize=4096)
def _is_users(module: str | None) -> bool:
    """Whether a module is the user's own: of others, neither globals nor classes are looked at."""
    return module is not None and module.partition(".")[0] != "torchrepro" and not is_installed_module(module)


_COMPILERS = ("torch._", "torch.fx", "torch.jit", "torch.distributed", "torch.export", "torchrepro")
_SIMPLE = frozenset({"types", "argparse", "collections", "functools"})


@functools.lru_cache(maxsize=4096)
def _has_state(kind: type) -> bool:
    """Whether instances keep state that belongs to the program, and not to Python or a compiler."""
    if issubclass(kind, torch.nn.Module):
        return not issubclass(kind, torch.jit.ScriptModule)
    module = getattr(kind, "__module__", "builtins") or "builtins"
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package in _SIMPLE
    return not (module + ".").startswith(_COMPILERS) and not module.startswith("numpy")


def _is_class_data(name: str, value: Any) -> bool:
    return not name.startswith("__") and not hasattr(type(value), "__get__")


def _slots(kind: type) -> tuple[Any, ...]:
    """Descriptors of the attributes that are not in `__dict__`."""
    return tuple(
        descriptor
        for base in kind.__mro__
        for descriptor in vars(base).values()
        if isinstance(descriptor, types.MemberDescriptorType) and _has_state(base) and base is not object
    )
