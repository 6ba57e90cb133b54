"""The `match` statement."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

# Bits of `type.__flags__` (Include/object.h)
_SEQUENCE = 1 << 5
_MAPPING = 1 << 6
_MATCHES_SELF = 1 << 22
_MISSING = object()
_CLASS = "type" if sys.version_info < (3, 12) else "class"


@instruction("GET_LEN")
def get_len(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.append(op.call_function(len, (frame.stack[-1],), {}))


@instruction("MATCH_SEQUENCE")
def match_sequence(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.append(bool(type(frame.stack[-1]).__flags__ & _SEQUENCE))


@instruction("MATCH_MAPPING")
def match_mapping(op: Interpreter, frame: Frame, argument: Any) -> None:
    frame.stack.append(bool(type(frame.stack[-1]).__flags__ & _MAPPING))


@instruction("MATCH_KEYS")
def match_keys(op: Interpreter, frame: Frame, argument: Any) -> None:
    """Push the values of the keys on top of the stack, or None if one is missing."""
    subject, keys = frame.stack[-2:]
    seen: set[Any] = set()
    values: list[Any] | None = []
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        value = op.call_method(subject, "get", (key, _MISSING), {})
        if value is _MISSING:
            values = None
            break
        assert values is not None
        values.append(value)
    frame.stack.append(None if values is None else tuple(values))


@instruction("MATCH_CLASS")
def match_class(op: Interpreter, frame: Frame, positional: int) -> None:
    """Replace subject, class and names of attributes by the values of these, or by None."""
    stack = frame.stack
    names, kind, subject = stack.pop(), stack.pop(), stack.pop()
    if not isinstance(kind, type):
        raise TypeError(f"called match pattern must be a {_CLASS}")
    if not op.call_function(isinstance, (subject, kind), {}):
        stack.append(None)
        return
    values: list[Any] = []
    fields = _positional(op, kind, positional)
    if fields is None:
        values.append(subject)
        fields = ()
    seen: set[str] = set()
    for name in (*fields, *names):
        if name in seen:
            raise TypeError(f"{kind.__name__}() got multiple sub-patterns for attribute {name!r}")
        seen.add(name)
        try:
            values.append(op.load_attr(subject, name))
        except AttributeError:
            stack.append(None)
            return
    stack.append(tuple(values))


def _positional(op: Interpreter, kind: type, count: int) -> tuple[str, ...] | None:
    """The attributes that `count` positional patterns stand for; None if the one stands for the subject."""
    if not count:
        return ()
    try:
        fields = op.load_attr(kind, "__match_args__")
    except AttributeError:
        fields, matches_self = (), bool(kind.__flags__ & _MATCHES_SELF)
    else:
        matches_self = False
    if type(fields) is not tuple:
        raise TypeError(f"{kind.__name__}.__match_args__ must be a tuple (got {type(fields).__name__})")
    allowed = 1 if matches_self else len(fields)
    if count > allowed:
        plural = "" if allowed == 1 else "s"
        raise TypeError(f"{kind.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
    if matches_self:
        return None
    for name in fields[:count]:
        if not isinstance(name, str):
            raise TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})")
    return fields[:count]
