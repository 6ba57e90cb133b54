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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from torchrepro.nouns.errors import TorchReproError
from torchrepro.torch_api.modules import compiled_function, compiled_module
from torchrepro.user_code.closure import is_installed_module

Contents = list[tuple[Any, Any]]
"""Keys and values of a holder, in their order."""

ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
"""Values that never change are of these types."""


@dataclass(frozen=True, eq=False)
class Holder:
    """A mutable object: how to read it, and how to put contents back without making it another object."""

    path: str
    read: Callable[[], Contents]
    write: Callable[[Contents], object]
    attributes: bool = False
    """Whether its keys are names of attributes, rather than indices or keys of a container."""
    draws: bool = False
    """Whether it is a random generator, which compiled code need not leave where plain Python leaves it."""

    def put(self, contents: Contents) -> None:
        """Write only what changes: a write disables the fast paths of the guards in compiled code."""
        now = self.read()
        same = len(now) == len(contents) and all(
            key is other_key and value is other
            for (key, value), (other_key, other) in zip(now, contents, strict=True)
        )
        if not same:
            self.write(contents)

    def path_of(self, index: int, key: Any) -> str:
        owner, _, table = self.path.rpartition(".")
        if table in ("_parameters", "_buffers", "_modules"):
            return f"{owner}.{key}"
        if self.attributes:
            return f"{self.path}.{key}"
        return f"{self.path}[{key!r}]" if isinstance(key, ATOMS) else f"{self.path}[#{index}]"


Access = tuple[Callable[[], Contents], Callable[[Contents], object]]
"""How to read an object, and how to write to it."""


def sequence(items: list[Any] | deque[Any]) -> Access:
    def write(contents: Contents) -> None:
        values = [value for _, value in contents]
        if isinstance(items, deque):
            items.clear()
            items.extend(values)
        else:
            list.__setitem__(items, slice(None), values)

    return lambda: list(enumerate(items)), write


def mapping(table: dict[Any, Any]) -> Access:
    """Read and write by the methods of `dict` itself: a user's class may do more when an item is set."""
    kind: Any = OrderedDict if isinstance(table, OrderedDict) else dict

    def write(contents: Contents) -> None:
        kind.clear(table)
        for key, value in contents:
            kind.__setitem__(table, key, value)

    return lambda: list(kind.items(table)), write


def set_items(items: set[Any]) -> Access:
    def write(contents: Contents) -> None:
        set.clear(items)
        set.update(items, (value for _, value in contents))

    return lambda: list(enumerate(items)), write


def one_value(name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> Access:
    """Read and write something as one value: the bytes of a `bytearray`, a generator's state."""
    return lambda: [(name, get())], lambda contents: put(contents[0][1])


def optional_value(
    name: str, get: Callable[[], Any], put: Callable[[Any], object], remove: Callable[[], object]
) -> Access:
    """Read and write a name that may be unbound, where `get` raises KeyError or ValueError."""

    def read() -> Contents:
        try:
            return [(name, get())]
        except (KeyError, ValueError):
            return []

    return read, lambda contents: put(contents[0][1]) if contents else remove()


def cell_value(name: str, cell: types.CellType) -> Access:
    change = partial(setattr, cell, "cell_contents"), partial(delattr, cell, "cell_contents")
    return optional_value(name, lambda: cell.cell_contents, *change)


def contents_of(cell: types.CellType) -> Any:
    """Return what a cell holds, None where its name is not bound yet."""
    found, _ = cell_value("", cell)
    return next((value for _, value in found()), None)


def name_in(namespace: dict[str, Any], name: str) -> Access:
    change = partial(namespace.__setitem__, name), partial(namespace.pop, name, None)
    return optional_value(name, lambda: namespace[name], *change)


def class_attribute(kind: type, name: str) -> Access:
    change = partial(type.__setattr__, kind, name), partial(type.__delattr__, kind, name)
    return optional_value(name, lambda: vars(kind)[name], *change)


def slot_values(owner: Any, slots: tuple[Any, ...]) -> Access:
    def read() -> Contents:
        return [(slot.__name__, slot.__get__(owner)) for slot in slots if hasattr(owner, slot.__name__)]

    def write(contents: Contents) -> None:
        wanted = dict(contents)
        for slot in slots:
            if slot.__name__ in wanted:
                slot.__set__(owner, wanted[slot.__name__])
            elif hasattr(owner, slot.__name__):
                slot.__delete__(owner)

    return read, write


def partial_of(function: Any) -> Access:
    def write(contents: Contents) -> None:
        values = dict(contents)
        function.__setstate__((values["func"], values["args"], values["keywords"], vars(function)))

    def read() -> Contents:
        return [("func", function.func), ("args", function.args), ("keywords", function.keywords)]

    return read, write


def generator_state(generator: Any) -> Access:
    """Read and write a random generator by its state."""
    if isinstance(generator, random.Random):
        return one_value("state", generator.getstate, generator.setstate)
    if isinstance(generator, torch.Generator):
        return one_value("state", generator.get_state, generator.set_state)
    bits = generator.bit_generator
    return one_value("state", lambda: bits.state, partial(setattr, bits, "state"))


LIMIT = 200_000
"""The most objects of a call's state that are followed."""


class Reach:
    """All that calling `function(*args, **kwargs)` can reach.

    The walk is breadth first, so that an object goes by its shortest path.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.holders: list[Holder] = []
        self.opaque: list[str] = []
        """What the call could change and that cannot be put back."""
        self._seen: dict[int, Any] = {}
        self._seen_names: set[tuple[int, str]] = set()
        start = "self" if hasattr(function, "__self__") else "function"
        given = [(f"inputs[{name!r}]", value) for name, value in (*enumerate(args), *kwargs.items())]
        self._queue: deque[tuple[str, Any]] = deque([(start, function), *given])
        while self._queue:
            path, value = self._queue.popleft()
            if isinstance(value, ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if len(self._seen) > LIMIT:
                raise TorchReproError(
                    f"the call can reach more than {LIMIT} objects",
                    next_step="compare a smaller function (leave out --whole, or verify=True)",
                )
            self._visit(path, value)

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor | np.ndarray | types.ModuleType):
            return
        if isinstance(value, tuple | frozenset):
            self._queue.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self._queue.append((path, value.__self__))
            self._queue.append((path, value.__func__))
        elif isinstance(value, functools.partial):
            self._hold(Holder(path, *partial_of(value)))
        elif isinstance(value, property | classmethod | staticmethod):
            inner = (value.fget, value.fset) if isinstance(value, property) else (value.__func__,)
            self._queue.extend((path, item) for item in inner)
        elif isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, random.Random | torch.Generator | np.random.Generator):
            self._hold(Holder(path, *generator_state(value), draws=True))
        else:
            self._object(path, value)

    def _hold(self, holder: Holder) -> None:
        self.holders.append(holder)
        for index, (key, value) in enumerate(holder.read()):
            self._queue.append((holder.path_of(index, key), value))

    def _object(self, path: str, value: Any) -> None:
        """Add containers by their items, instances of other classes by their attributes; some are both."""
        if isinstance(value, list | deque):
            self._hold(Holder(path, *sequence(value)))
        elif isinstance(value, dict):
            self._hold(Holder(path, *mapping(value)))
            for index, key in enumerate(dict.keys(value)):
                self._queue.append((f"{path}[#{index}]", key))
        elif isinstance(value, set):
            self._hold(Holder(path, *set_items(value)))
        elif isinstance(value, bytearray):
            put = partial(value.__setitem__, slice(None))
            self._hold(Holder(path, *one_value("bytes", lambda: bytes(value), put)))
        elif isinstance(value, Iterator) and not hasattr(value, "__dict__"):
            self.opaque.append(path)
        kind: Any = type(value)
        if not _has_state(kind):
            return
        if isinstance(value, torch.nn.Module) and (original := compiled_module(value)) is not None:
            self._queue.append((path, original))
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._hold(Holder(path, *mapping(attributes), attributes=True))
        slots = _slots(type(value))
        if slots:
            self._hold(Holder(path, *slot_values(value, slots), attributes=True))
        self._queue.append((type(value).__name__, type(value)))

    def _function(self, path: str, function: types.FunctionType) -> None:
        original = compiled_function(function)
        if original is not None:  # compiled: it holds the compiler, which is not the user's state
            self._queue.append((path, original))
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._hold(Holder("closure", *cell_value(name, cell), attributes=True))
        self._queue.append((f"{path}.__defaults__", function.__defaults__))
        self._queue.append((f"{path}.__kwdefaults__", function.__kwdefaults__))
        self._hold(Holder(path, *mapping(vars(function)), attributes=True))
        if not _is_users(function.__module__):
            return
        globals_, attributes = names_in(function.__code__)
        self._names("globals", function.__globals__, globals_)
        for name in globals_:
            module = function.__globals__.get(name)
            if isinstance(module, types.ModuleType) and _is_users(module.__name__):
                self._names(module.__name__, vars(module), attributes)

    def _names(self, path: str, namespace: dict[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if self._is_new(namespace, name):
                self._hold(Holder(path, *name_in(namespace, name), attributes=True))

    def _is_new(self, owner: Any, name: str) -> bool:
        known = (id(owner), name) in self._seen_names
        self._seen_names.add((id(owner), name))
        return not known

    def _class(self, path: str, kind: type) -> None:
        """Add attributes that are data, and the methods, which have closures and globals of their own."""
        for base in kind.__mro__:
            if base is object or not _is_users(base.__module__):
                continue
            for name, value in vars(base).items():
                if isinstance(value, types.FunctionType | property | classmethod | staticmethod):
                    self._queue.append((f"{base.__name__}.{name}", value))
                elif name.startswith("__") or hasattr(type(value), "__get__"):
                    continue
                elif self._is_new(base, name):
                    self._hold(Holder(base.__name__, *class_attribute(base, name), attributes=True))


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globals and the attributes that the code names, nested functions included."""
    globals_: dict[str, None] = {}
    attributes: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"):
            globals_[instruction.argval] = None
        elif instruction.opname in ("LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD", "DELETE_ATTR"):
            attributes[instruction.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for known, found in zip((globals_, attributes), names_in(constant), strict=True):
                known.update(dict.fromkeys(found))
    return tuple(globals_), tuple(attributes)


@functools.lru_cache(maxsize=4096)
def _is_users(module: str | None) -> bool:
    """Return whether a module is the user's own: of others, neither globals nor classes are looked at."""
    return module is not None and module.partition(".")[0] != "torchrepro" and not is_installed_module(module)


_COMPILERS = ("torch._", "torch.fx", "torch.jit", "torch.distributed", "torch.export", "torchrepro")
_SIMPLE = frozenset({"types", "argparse", "collections", "functools"})


@functools.lru_cache(maxsize=4096)
def _has_state(kind: type) -> bool:
    """Return whether instances keep state that belongs to the program, not to Python or a compiler."""
    if issubclass(kind, torch.nn.Module):
        return not issubclass(kind, torch.jit.ScriptModule)
    module = getattr(kind, "__module__", "builtins") or "builtins"
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package in _SIMPLE
    return not (module + ".").startswith(_COMPILERS) and not module.startswith("numpy")


def _slots(kind: type) -> tuple[Any, ...]:
    """Return descriptors of the attributes that are not in `__dict__`."""
    return tuple(
        descriptor
        for base in kind.__mro__
        for descriptor in vars(base).values()
        if isinstance(descriptor, types.MemberDescriptorType) and _has_state(base) and base is not object
    )
