"""Mutable objects of a program as `Holder`s: their contents are read, and put back into the same objects."""

from __future__ import annotations

import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Contents = list[tuple[Any, Any]]
"""Keys and values of a holder, in their order."""

ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
"""Values that never change are of these types."""


@dataclass(frozen=True, eq=False)
class Holder:
    """A mutable object: how to read it, and how to put contents back without making it another object."""

    path: str
    read: Callable[[], Contents]
    write: Callable[[Contents], None]
    attributes: bool = False
    """Whether its keys are names of attributes, rather than indices or keys of a container."""
    draws: bool = False
    """Whether it is a random generator, which compiled code need not leave where plain Python leaves it."""

    def put(self, contents: Contents) -> None:
        """Write only what changes: a write costs the guards of compiled code their shortcuts."""
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


Access = tuple[Callable[[], Contents], Callable[[Contents], None]]
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
    """By the methods of `dict` itself: a class of the user's may do more when an item is set."""
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


def bytes_of(data: bytearray) -> Access:
    def write(contents: Contents) -> None:
        data[:] = contents[0][1]

    return lambda: [("bytes", bytes(data))], write


def cell_of(name: str, cell: types.CellType) -> Access:
    def read() -> Contents:
        try:
            return [(name, cell.cell_contents)]
        except ValueError:  # a name that is not bound yet
            return []

    def write(contents: Contents) -> None:
        if contents:
            cell.cell_contents = contents[0][1]
        else:
            del cell.cell_contents

    return read, write


def name_in(namespace: dict[str, Any], name: str) -> Access:
    def write(contents: Contents) -> None:
        if contents:
            namespace[name] = contents[0][1]
        else:
            namespace.pop(name, None)

    return lambda: [(name, namespace[name])] if name in namespace else [], write


def class_attribute(kind: type, name: str) -> Access:
    def write(contents: Contents) -> None:
        if contents:
            type.__setattr__(kind, name, contents[0][1])
        elif name in vars(kind):
            type.__delattr__(kind, name)

    return lambda: [(name, vars(kind)[name])] if name in vars(kind) else [], write


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
    """A random generator, by its state."""
    if isinstance(generator, random.Random):
        return lambda: [("state", generator.getstate())], lambda given: generator.setstate(given[0][1])
    if isinstance(generator, torch.Generator):
        torchs: torch.Generator = generator

        def write_state(contents: Contents) -> None:
            torchs.set_state(contents[0][1])

        return lambda: [("state", torchs.get_state())], write_state

    def write(contents: Contents) -> None:
        generator.bit_generator.state = contents[0][1]

    return lambda: [("state", generator.bit_generator.state)], write
