"""Recipe: how generated code makes one object; here those of classes.

An object is allocated by the builtin type that its class derives from, and its state is set directly. No code
of the user's runs: no `__init__`, `__setattr__` or `__setitem__`. Their doing is in the state.
"""

from __future__ import annotations

from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, MemberDescriptorType, SimpleNamespace, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.raw_access import is_a

if TYPE_CHECKING:
    from torchrepro.frontend.codegen.rebuild import Rebuilder


class CannotRebuild(Exception):
    """A live value that generated code cannot make again; the text names its type."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Each function asks for the parts it needs before it writes anything: it may be run again."""

    make: Callable[[], str]
    """The expression that makes the object, with the parts that it cannot exist without."""
    fill: Callable[[str], None] | None = None
    """Writes the statements that add the rest to the object in that variable."""
    whole: Callable[[], str] | None = None
    """An expression for the complete object if it is not part of itself. `make` then asks for no parts."""


LIBRARY = (OrderedDict, defaultdict, deque, Counter, ChainMap, UserDict, UserList, SimpleNamespace)
"""Classes whose objects need not have been seen being made: they are known to be nothing but their state."""

ERROR_FIELDS = {"__suppress_context__": False}
"""What an error's own fields are where nobody set them, if not None (`StopIteration.value`)."""

IMMUTABLE: Mapping[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}
"""Builtin types whose value is given when an object is allocated, and how it is read past a subclass."""


def tuple_text(r: Rebuilder, values: tuple[Any, ...]) -> str:
    """Return the display of a tuple; the comma is for a tuple of one."""
    return f"({r.sequence(values)}{',' if len(values) == 1 else ''})"


def recipe(r: Rebuilder, value: Any) -> Recipe:
    cls = type(value)
    if cls is SteppedGenerator:
        raise CannotRebuild("a generator that has begun")
    if not (cls in LIBRARY or _is_record(cls) or _is_builtin_error(cls) or r.world.is_fresh(value)):
        raise CannotRebuild(f"{_name(cls)}, which was not seen being made")
    if r.world.is_opaque(value):
        raise CannotRebuild(f"{_name(cls)}, which torch raised for tensors without values")
    base = _builtin_base(cls)
    contents = _error_contents if issubclass(base, BaseException) else CONTENTS.get(base)

    def make() -> str:
        if hasattr(cls, "n_sequence_fields"):  # torch.return_types and the like
            _, (fields, others) = value.__reduce__()
            return f"{r.held(cls)}({tuple_text(r, fields)}{f', {r.expression(others)}' if others else ''})"
        arguments = ""
        if base is tuple:
            arguments = f", {tuple_text(r, tuple(tuple.__iter__(value)))}"
        elif base is frozenset:
            arguments = f", [{r.sequence(frozenset.__iter__(value))}]"
        elif base in IMMUTABLE:
            arguments = f", {r.expression(IMMUTABLE[base](value))}"
        elif issubclass(base, BaseException):
            arguments = "".join(f", {text}" for text in r.expressions(value.args))
        return f"{r.held(base)}.__new__({r.held(cls)}{arguments})"

    def fill(name: str) -> None:
        statements = [
            *(contents(r, name, value) if contents else ()),
            *(
                f"{r.held(slot)}.__set__({name}, {r.expression(held)})"
                for slot, held in _members(base, value)
            ),
            *(
                f"{dict_text(r, name, cls)}[{r.expression(key)}] = {r.expression(held)}"
                for key, held in attributes(value).items()
            ),
        ]
        r.body.extend(statements)

    return Recipe(make, fill)


def attributes(value: Any) -> dict[Any, Any]:
    """Return the instance's `__dict__`, past any `__getattribute__`; empty where it has none."""
    try:
        held: dict[Any, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held


def elements(value: Any) -> Iterator[Any]:
    """Of a list, tuple, set or deque, past what a subclass says."""
    base: Any = next(base for base in (list, tuple, set, frozenset, deque) if is_a(value, base))
    iterator: Iterator[Any] = base.__iter__(value)
    return iterator


def dict_items(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """In the order that an `OrderedDict` keeps for itself, past what a subclass says."""
    return OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)


def dict_text(r: Rebuilder, name: str, cls: type) -> str:
    if is_a(cls.__getattribute__, WrapperDescriptorType):
        return f"{name}.__dict__"
    return f"{r.held(object)}.__getattribute__({name}, '__dict__')"


def slot_descriptors(cls: type) -> dict[str, Any]:
    """By the name of the attribute. Of builtin classes only errors have such as can be set (but groups)."""
    return {
        name: descriptor
        for owner in reversed(cls.__mro__)
        if "__slots__" in vars(owner) or (_is_builtin_error(owner) and owner is not BaseExceptionGroup)
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


def _members(base: type, value: Any) -> Iterator[tuple[Any, Any]]:
    descriptors = slot_descriptors(type(value))
    for name, held in slots(value):
        if not issubclass(base, BaseException) or held is not ERROR_FIELDS.get(name):
            yield descriptors[name], held
    if base is defaultdict:
        yield vars(defaultdict)["default_factory"], value.default_factory


def _list_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    return [f"{r.held(list)}.extend({name}, [{r.sequence(elements(value))}])"]


def _set_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    return [f"{r.held(set)}.update({name}, [{r.sequence(elements(value))}])"]


def _deque_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    maxlen = deque.maxlen.__get__(value)
    return [f"{r.held(deque)}.__init__({name}, [{r.sequence(elements(value))}], {maxlen})"]


def _bytearray_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    return [f"{r.held(bytearray)}.__init__({name}, {bytes(memoryview(value))!r})"]


def _dict_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    base = OrderedDict if is_a(value, OrderedDict) else dict
    return [
        f"{r.held(base)}.__setitem__({name}, {r.expression(key)}, {r.expression(held)})"
        for key, held in dict_items(value)
    ]


def _error_contents(r: Rebuilder, name: str, value: BaseException) -> list[str]:
    """Return what sets an error's fields, but no traceback: it would show frames of the tracer."""
    base = r.held(_builtin_base(type(value)))
    links = [(link, getattr(value, link)) for link in ("__cause__", "__context__")]
    return [
        f"{base}.__init__({', '.join((name, *r.expressions(value.args)))})",
        *(
            f"{base}.{link}.__set__({name}, {r.expression(other)})"
            for link, other in links
            if other is not None
        ),
    ]


CONTENTS: Mapping[type, Callable[[Rebuilder, str, Any], list[str]]] = {
    list: _list_contents,
    set: _set_contents,
    deque: _deque_contents,
    bytearray: _bytearray_contents,
    dict: _dict_contents,
    OrderedDict: _dict_contents,
    defaultdict: _dict_contents,
}
"""What a builtin type itself holds, set by its own methods."""

KNOWN_BASES = {object, tuple, frozenset, SimpleNamespace, *IMMUTABLE, *CONTENTS}


def _builtin_base(cls: type) -> type:
    """Return the type that allocates: the first with a `__new__` in C. Refuse one with unknown fields."""
    for base in cls.__mro__:
        if base in KNOWN_BASES or _is_builtin_error(base) or hasattr(base, "n_sequence_fields"):
            return base
        if is_a(vars(base).get("__new__"), BuiltinFunctionType):
            break
    raise CannotRebuild(f"{_name(cls)} has state in C that generated code cannot set")


def _is_builtin_error(cls: type) -> bool:
    return issubclass(cls, BaseException) and cls.__module__ == "builtins"


def _is_record(cls: type) -> bool:
    """Return whether it is a named tuple or a struct sequence: immutable, so that a copy will do."""
    return (
        issubclass(cls, tuple)
        and cls.__dictoffset__ == 0
        and (hasattr(cls, "_fields") or hasattr(cls, "n_sequence_fields"))
    )


def _name(cls: type) -> str:
    return f"object of type {cls.__module__}.{cls.__qualname__}"
