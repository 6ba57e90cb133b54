"""What objects consist of, bypassing overrides in their classes, and what tracing changed of old ones."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Source


class CannotRebuild(Exception):
    """A live value that generated code cannot make again; the text names its type."""


class ShadowKind(StrEnum):
    """What of an old object was copied. The stand-in is of the same builtin type unless said otherwise."""

    LIST = "list"
    DICT = "dict"
    """Also the globals of a function and the tables of an `nn.Module`."""
    SET = "set"
    DEQUE = "deque"
    CELL = "cell"
    ATTRIBUTES = "attributes"
    """The `__dict__` of an object, a module or a class; the stand-in is a dict of all of it."""
    SLOTS = "slots"
    """The `__slots__` of an object; the stand-in is a dict of those that are set."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """An old object and the copy that tracing changed in its place."""

    source: Source
    original: Any
    stand_in: Any
    kind: ShadowKind
    before: dict[Any, Any] | None = None
    """Of a dict or attributes: what was there when it was copied. Code outside of the trace may change the
    original meanwhile (a lazy import adds to the globals of a module): that is no effect of the trace. What
    the trace has written without reading is missing here, so it is written back; a written cell has {}."""


def attributes(value: Any) -> dict[Any, Any]:
    """Return the instance's `__dict__`, bypassing any `__getattribute__`; empty where it has none."""
    try:
        held: dict[Any, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held


def elements(value: Any) -> Iterator[Any]:
    """Return an iterator of a list, tuple, set or deque, bypassing overrides of a subclass."""
    base: Any = next(base for base in (list, tuple, set, frozenset, deque) if is_a(value, base))
    iterator: Iterator[Any] = base.__iter__(value)
    return iterator


def dict_items(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Return the items in order, also that of an `OrderedDict`, bypassing overrides of a subclass."""
    return OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)


def dict_copy(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy in the same order; keys keep their hashes, unless a subclass overrides `__iter__`."""
    if type(value) is OrderedDict:
        return value.copy()
    return dict.copy(value) if type(value).__iter__ is dict.__iter__ else dict(dict_items(value))


def slot_descriptors(cls: type) -> dict[str, Any]:
    """Return descriptors of slots by name. Of builtin classes only errors have settable ones (not groups)."""
    return {
        name: descriptor
        for owner in reversed(cls.__mro__)
        if "__slots__" in vars(owner) or (is_builtin_error(owner) and owner is not BaseExceptionGroup)
        for name, descriptor in vars(owner).items()
        if is_a(descriptor, MemberDescriptorType)
    }


def slots(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the slots that are set."""
    for name, descriptor in slot_descriptors(type(value)).items():
        try:
            yield name, descriptor.__get__(value)
        except AttributeError:
            continue


def is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (asking is the test)
    except ValueError:
        return False
    return True


def is_builtin_error(cls: type) -> bool:
    return issubclass(cls, BaseException) and cls.__module__ == "builtins"


def is_only_code(cls: type) -> bool:
    """Return whether no program can tell two classes made by the same statement apart, but by `is`.

    Their methods share no variable with other functions, and no attribute can be changed in place.
    """
    return all(name == "__annotations__" or _is_only_code(value, cls) for name, value in vars(cls).items())


def _is_only_code(value: Any, owner: type) -> bool:
    if is_a(value, staticmethod | classmethod):
        return _is_only_code(value.__func__, owner)
    if is_a(value, property):
        return all(_is_only_code(part, owner) for part in (value.fget, value.fset, value.fdel))
    if type(value) is FunctionType:
        cells = value.__closure__ or ()
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return (
            all(is_full(cell) and cell.cell_contents is owner for cell in cells)
            and all(map(is_constant, defaults))
            and not vars(value)
        )
    return is_constant(value) or is_a(value, GetSetDescriptorType | MemberDescriptorType)
