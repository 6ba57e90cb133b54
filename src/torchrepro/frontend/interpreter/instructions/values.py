"""Constants, operators, attributes, items, f-strings, collections, iteration and the `match` statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecode import BinaryOp, Compare

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.table import (
    INSTRUCTIONS,
    enter_all,
    instruction,
    native,
    take,
)

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

# Indexed by the enum's value: reading the name of an enum's member is slow.
_BINARY = tuple(member.name for member in sorted(BinaryOp))
_COMPARE = tuple(member.name for member in sorted(Compare))
_CONVERT = (None, str, repr, ascii)
_SIZED = frozenset({tuple, list, dict, set, frozenset, str, bytes, range})

# Bits of `type.__flags__` (Include/object.h)
_SEQUENCE = 1 << 5
_MAPPING = 1 << 6
_MATCHES_SELF = 1 << 22
_MISSING = object()
_ITSELF = "<itself>"  # in place of an attribute's name, for the subject

enter_all(
    {
        "LOAD_CONST": lambda op, value: value,
        "LOAD_ASSERTION_ERROR": lambda op, argument: AssertionError,
        "PUSH_NULL": lambda op, argument: NULL,
        "UNARY_NEGATIVE": lambda op, argument, value: op.operators.unary("UNARY_NEGATIVE", value),
        "UNARY_INVERT": lambda op, argument, value: op.operators.unary("UNARY_INVERT", value),
        "UNARY_POSITIVE": lambda op, argument, value: op.operators.unary("UNARY_POSITIVE", value),
        "UNARY_NOT": lambda op, argument, value: not op.operators.is_true(value),
        "TO_BOOL": lambda op, argument, value: op.operators.is_true(value),
        "LOAD_ATTR": lambda op, name, value: op.attributes.load(value, name),
        "GET_ITER": lambda op, argument, value: op.items.iterate(value),
        "LIST_TO_TUPLE": lambda op, argument, value: tuple(value),
        "CONVERT_VALUE": lambda op, conversion, value: op.calls.call(_CONVERT[conversion], (value,), {}),
        "FORMAT_SIMPLE": lambda op, argument, value: op.operators.format(value, "", ""),
        "FORMAT_WITH_SPEC": lambda op, argument, value, spec: op.operators.format(value, "", spec),
        "BINARY_OP": lambda op, which, left, right: op.operators.binary(_BINARY[which], left, right),
        "COMPARE_OP": lambda op, which, left, right: op.operators.compare(_COMPARE[which], left, right),
        "IS_OP": lambda op, negated, left, right: (left is right) != bool(negated),
        "CONTAINS_OP": lambda op, negated, value, container: (
            op.items.contains(container, value) != bool(negated)
        ),
        "BINARY_SUBSCR": lambda op, argument, container, key: op.items.get(container, key),
        "LOAD_SUPER_ATTR": lambda op, name, kind, start, value: (
            op.attributes.load_super(start, value, name)
            if kind is super
            else op.attributes.load(op.calls.call(kind, (start, value), {}), name)
        ),
        "BINARY_SLICE": lambda op, argument, value, start, stop: op.items.get(value, slice(start, stop)),
    }
)
enter_all(
    {
        "POP_TOP": lambda op, argument, value: None,
        "STORE_ATTR": lambda op, name, new, value: op.attributes.store(value, name, new),
        "DELETE_ATTR": lambda op, name, value: op.attributes.delete(value, name),
        "STORE_SUBSCR": lambda op, argument, new, container, key: op.items.set(container, key, new),
        "DELETE_SUBSCR": lambda op, argument, container, key: op.items.delete(container, key),
        "STORE_SLICE": lambda op, argument, new, container, start, stop: op.items.set(
            container, slice(start, stop), new
        ),
    },
    pushes=False,
)


INSTRUCTIONS["COPY"] = lambda op, frame, depth: frame.stack.append(frame.stack[-depth])


@instruction("SWAP")
def swap(op: Interpreter, frame: Frame, depth: int) -> None:
    stack = frame.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@instruction("FORMAT_VALUE")
def format_value(op: Interpreter, frame: Frame, flags: int) -> None:
    spec = frame.stack.pop() if flags & 4 else ""
    frame.stack[-1] = op.operators.format(frame.stack[-1], ("", "str", "repr", "ascii")[flags & 3], spec)


# Collections


def _build(name: str, made_of: Callable[[Interpreter, list[Any]], Any], slots: int = 1) -> None:
    """Register an instruction that makes a collection of `count` items, of one or two slots each."""

    @instruction(name)
    def build(op: Interpreter, frame: Frame, count: int) -> None:
        frame.stack.append(made_of(op, take(frame.stack, slots * count)))


_build("BUILD_SLICE", lambda op, values: slice(*values))
_build("BUILD_STRING", lambda op, values: "".join(values))
_build("BUILD_TUPLE", lambda op, values: tuple(values))
_build("BUILD_LIST", lambda op, values: values)
_build("BUILD_SET", lambda op, values: set(op.items.as_keys(values)))
_build("BUILD_MAP", lambda op, values: dict(zip(op.items.as_keys(values[::2]), values[1::2], strict=True)), 2)


@instruction("BUILD_CONST_KEY_MAP")
def build_const_key_map(op: Interpreter, frame: Frame, count: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, take(frame.stack, count), strict=True)))


def _add(name: str, add: Callable[..., None], slots: int = 1) -> None:
    """Register an instruction that adds to a collection being built, `depth` below what is added."""

    @instruction(name)
    def step(op: Interpreter, frame: Frame, depth: int) -> None:
        values = take(frame.stack, slots)
        add(op, frame.stack[-depth], *values)


def _extend(op: Interpreter, items: list[Any], value: Any) -> None:
    if not is_iterable(value):
        raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
    items.extend(op.items.unpack(value))


def _update(op: Interpreter, table: dict[Any, Any], value: Any) -> None:
    if not is_mapping(value):
        raise TypeError(f"'{type(value).__name__}' object is not a mapping")
    table.update(op.items.mapping(value))


_add("LIST_APPEND", lambda op, items, value: items.append(value))
_add("SET_ADD", lambda op, members, value: members.update(op.items.as_keys((value,))))
_add("MAP_ADD", lambda op, table, key, value: table.update({op.items.as_keys((key,))[0]: value}), 2)
_add("LIST_EXTEND", _extend)
_add("SET_UPDATE", lambda op, members, value: members.update(op.items.unpack(value)))
_add("DICT_UPDATE", _update)


def is_iterable(value: Any) -> bool:
    """Return whether a type can have an iterator at all, by CPython's check."""
    kind = type(value)
    return getattr(kind, "__iter__", None) is not None or hasattr(kind, "__getitem__")


def is_mapping(value: Any) -> bool:
    return isinstance(value, dict) or hasattr(value, "keys")


# Iteration


@instruction("FOR_ITER")
def for_iter(op: Interpreter, frame: Frame, end: int) -> int | None:
    try:
        frame.stack.append(op.items.next(frame.stack[-1]))
    except StopIteration:
        frame.stack.pop()
        return end
    return None


@instruction("UNPACK_SEQUENCE")
def unpack_sequence(op: Interpreter, frame: Frame, count: int) -> None:
    value = frame.stack.pop()
    items = op.items.unpack(value) if type(value) in _SIZED else _first_items(op, value, count + 1)
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    frame.stack.extend(reversed(items))


def _first_items(op: Interpreter, value: Any, count: int) -> list[Any]:
    """Return up to `count` items, advancing no further: the iterator may be infinite, or used again."""
    _require_iterable(value)
    iterator, items = op.items.iterate(value), list[Any]()
    try:
        while len(items) < count:
            items.append(op.items.next(iterator))
    except StopIteration:
        return items
    return items


def _require_iterable(value: Any) -> None:
    if not is_iterable(value):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")


@instruction("UNPACK_EX")
def unpack_ex(op: Interpreter, frame: Frame, counts: int) -> None:
    before, after = counts & 0xFF, counts >> 8
    value = frame.stack.pop()
    _require_iterable(value)
    items = list(op.items.unpack(value))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    end = len(items) - after
    frame.stack.extend(reversed(items[end:]))
    frame.stack.append(items[before:end])
    frame.stack.extend(reversed(items[:before]))


# The `match` statement


def _push_about(name: str, fact: Callable[[Interpreter, Any], Any]) -> None:
    """Register an instruction that pushes a fact about the top of the stack."""
    INSTRUCTIONS[name] = lambda op, frame, argument: frame.stack.append(fact(op, frame.stack[-1]))


_push_about("GET_LEN", lambda op, value: op.calls.call(len, (value,), {}))
_push_about("MATCH_SEQUENCE", lambda op, value: bool(type(value).__flags__ & _SEQUENCE))
_push_about("MATCH_MAPPING", lambda op, value: bool(type(value).__flags__ & _MAPPING))


@instruction("MATCH_KEYS")
def match_keys(op: Interpreter, frame: Frame, argument: Any) -> None:
    """Push the values of the keys on top of the stack, or None if one is missing."""
    subject, keys = frame.stack[-2:]
    values: list[Any] = []
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        values.append(op.calls.call_method(subject, "get", (key, _MISSING), {}))
        if values[-1] is _MISSING:
            frame.stack.append(None)
            return
    frame.stack.append(tuple(values))


@instruction("MATCH_CLASS")
def match_class(op: Interpreter, frame: Frame, count: int) -> None:
    """Replace subject, class and names of attributes by the values of these, or by None."""
    subject, kind, names = take(frame.stack, 3)
    complain = native("MATCH_CLASS", count, 3, frame.globals)
    if not isinstance(kind, type):
        complain(subject, kind, names)
    if not op.calls.call(isinstance, (subject, kind), {}):
        frame.stack.append(None)
        return
    fields: Any = ()
    try:
        fields = op.attributes.load(kind, "__match_args__") if count else ()
    except AttributeError:
        fields = (_ITSELF,) if kind.__flags__ & _MATCHES_SELF else ()
    read = (*fields[:count], *names) if type(fields) is tuple else ()
    strings = len(read) == count + len(names) and all(isinstance(name, str) for name in read)
    if not strings or len({*read}) < len(read):
        complain(subject, kind, names)
    try:
        values = [subject if name is _ITSELF else op.attributes.load(subject, name) for name in read]
        frame.stack.append(tuple(values))
    except AttributeError:
        frame.stack.append(None)
