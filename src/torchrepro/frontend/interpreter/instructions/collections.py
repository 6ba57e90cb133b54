"""Building, extending, iterating and unpacking collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

_SIZED = frozenset({tuple, list, dict, set, frozenset, str, bytes, range})


def take(stack: list[Any], count: int) -> list[Any]:
    """Pop `count` values, deepest first."""
    start = len(stack) - count
    values = stack[start:]
    del stack[start:]
    return values


@instruction("BUILD_TUPLE")
def build_tuple(op: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(tuple(take(frame.stack, count)))


@instruction("BUILD_LIST")
def build_list(op: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(take(frame.stack, count))


@instruction("BUILD_SET")
def build_set(op: Interpreter, frame: Frame, count: int) -> None:
    items = take(frame.stack, count)
    op.as_keys(items)
    frame.stack.append(set(items))


@instruction("BUILD_MAP")
def build_map(op: Interpreter, frame: Frame, count: int) -> None:
    items = take(frame.stack, 2 * count)
    op.as_keys(items[::2])
    frame.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


@instruction("BUILD_CONST_KEY_MAP")
def build_const_key_map(op: Interpreter, frame: Frame, count: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, take(frame.stack, count), strict=True)))


@instruction("LIST_TO_TUPLE")
def list_to_tuple(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


# Into a collection that is being built, `depth` below the value


@instruction("LIST_APPEND")
def list_append(op: Interpreter, frame: Frame, depth: int) -> None:
    value = frame.stack.pop()
    frame.stack[-depth].append(value)


@instruction("SET_ADD")
def set_add(op: Interpreter, frame: Frame, depth: int) -> None:
    value = frame.stack.pop()
    op.as_keys((value,))
    frame.stack[-depth].add(value)


@instruction("MAP_ADD")
def map_add(op: Interpreter, frame: Frame, depth: int) -> None:
    value, key = frame.stack.pop(), frame.stack.pop()
    op.as_keys((key,))
    frame.stack[-depth][key] = value


@instruction("LIST_EXTEND")
def list_extend(op: Interpreter, frame: Frame, depth: int) -> None:
    value = frame.stack.pop()
    if not is_iterable(value):
        raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
    frame.stack[-depth].extend(op.unpack(value))


@instruction("SET_UPDATE")
def set_update(op: Interpreter, frame: Frame, depth: int) -> None:
    value = frame.stack.pop()
    frame.stack[-depth].update(op.unpack(value))


@instruction("DICT_UPDATE")
def dict_update(op: Interpreter, frame: Frame, depth: int) -> None:
    value = frame.stack.pop()
    if not is_mapping(value):
        raise TypeError(f"'{type(value).__name__}' object is not a mapping")
    frame.stack[-depth].update(op.mapping(value))


def is_iterable(value: Any) -> bool:
    """Whether there is any point in asking for an iterator: the question CPython puts to the type."""
    kind = type(value)
    return getattr(kind, "__iter__", None) is not None or hasattr(kind, "__getitem__")


def is_mapping(value: Any) -> bool:
    return isinstance(value, dict) or hasattr(value, "keys")


# Iteration


@instruction("GET_ITER")
def get_iter(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack[-1] = op.get_iter(frame.stack[-1])


@instruction("FOR_ITER")
def for_iter(op: Interpreter, frame: Frame, end: int) -> int | None:
    try:
        frame.stack.append(op.next_item(frame.stack[-1]))
    except StopIteration:
        frame.stack.pop()
        return end
    return None


@instruction("UNPACK_SEQUENCE")
def unpack_sequence(op: Interpreter, frame: Frame, count: int) -> None:
    value = frame.stack.pop()
    if type(value) in _SIZED:
        items = op.unpack(value)
    else:
        items = _first_items(op, _iterator(op, value), count + 1)
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    frame.stack.extend(reversed(items))


def _iterator(op: Interpreter, value: Any) -> Any:
    if not is_iterable(value):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    return op.get_iter(value)


def _first_items(op: Interpreter, iterator: Any, count: int) -> list[Any]:
    """No more than are needed: the iterator may be endless, or used again."""
    items: list[Any] = []
    try:
        while len(items) < count:
            items.append(op.next_item(iterator))
    except StopIteration:
        return items
    return items


@instruction("UNPACK_EX")
def unpack_ex(op: Interpreter, frame: Frame, counts: int) -> None:
    before, after = counts & 0xFF, counts >> 8
    value = frame.stack.pop()
    if not is_iterable(value):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    items = list(op.unpack(value))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    end = len(items) - after
    frame.stack.extend(reversed(items[end:]))
    frame.stack.append(items[before:end])
    frame.stack.extend(reversed(items[:before]))
