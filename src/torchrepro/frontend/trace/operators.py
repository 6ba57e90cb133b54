"""Operators, items and iteration during a trace: special methods in Python are inlined, C does the rest."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.codegen.objects import dict_items, elements
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.operations import (
    BINARY,
    BINARY_METHODS,
    COMPARE,
    UNARY,
    Items,
    Operators,
)
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.classes import MISSING, is_python_class, is_trusted_class
from torchrepro.frontend.trace.foreign import SteppedIterator, natively
from torchrepro.frontend.trace.rules import is_native_iterator

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_CONVERSIONS: Mapping[str, Callable[[object], str]] = {"str": str, "repr": repr, "ascii": ascii}

_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)

_SYMBOLS = dict(
    zip(BINARY_METHODS, ["+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"], strict=True)
)
_COMPARISONS = {
    "LT": ("lt", "gt", "<"),
    "LE": ("le", "ge", "<="),
    "EQ": ("eq", "eq", "=="),
    "NE": ("ne", "ne", "!="),
    "GT": ("gt", "lt", ">"),
    "GE": ("ge", "le", ">="),
}
"""Method, reflected method and symbol."""

_UNARY_METHODS = {"UNARY_NEGATIVE": "__neg__", "UNARY_INVERT": "__invert__", "UNARY_POSITIVE": "__pos__"}


def checked_length(length: Any) -> int:
    """Return the result of `__len__` as an integer; raise where it is not a length."""
    number = operator.index(length)
    if number < 0:
        raise ValueError("__len__() should return >= 0")
    return number


class TracedOperators(Operators):
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.values, self.dicts = tracer, tracer.values, tracer.dicts
        self.lookup, self.special = tracer.classes.lookup, tracer.calls.special

    def unary(self, name: str, value: Any) -> Any:
        self.values.require_known(value)
        result = self.special(value, _UNARY_METHODS[name])
        return UNARY[name](value) if result is MISSING else result

    def binary(self, name: str, left: Any, right: Any) -> Any:
        self.values.require_known(left, right)
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            if is_a(left, dict | list) or is_a(right, dict | list):
                self.dicts.complete_all((left, right))
            if name == "INPLACE_ADD" and type(left) is list:
                right = self.tracer.items.iterable(right)
            return natively("an operator", BINARY[name], left, right)
        self.dicts.complete_all((left, right))
        # Sequences are joined or repeated only when neither operand has the operator of numbers.
        joined = _SEQUENCES if name.removeprefix("INPLACE_") in ("ADD", "MULTIPLY") else ()
        result = self._first_answer("an operator", self._candidates(name, left, right), joined)
        if result is not NotImplemented:
            return result
        if is_a(left, joined) or is_a(right, joined):
            operands = (
                self.tracer.items.as_index(each) if is_python_class(type(each)) else each
                for each in (left, right)
            )
            return natively("an operator", BINARY[name], *operands)
        symbol = _SYMBOLS[name.removeprefix("INPLACE_")]
        symbol += "=" if name.startswith("INPLACE_") else " or pow()" if name == "POWER" else ""
        raise TypeError(f"unsupported operand type(s) for {symbol}: {_kinds(left, right)}")

    def _candidates(self, name: str, left: Any, right: Any) -> list[tuple[Any, str, Any]]:
        """Return what is called, in order: an object, its method, the argument."""
        stem = BINARY_METHODS[name.removeprefix("INPLACE_")]
        asked = [(left, f"__i{stem}__", right)] if name.startswith("INPLACE_") else []
        plain, reflected = (left, f"__{stem}__", right), (right, f"__r{stem}__", left)
        if type(right) is type(left):
            return [*asked, plain]
        if issubclass(type(right), type(left)):
            # A subclass comes first where it overrides the method.
            own = self.lookup(type(right), reflected[1])
            if own is not MISSING and own is not self.lookup(type(left), reflected[1]):
                return [*asked, reflected, plain]
        return [*asked, plain, reflected]

    def _first_answer(self, what: str, asked: Iterable[tuple[Any, str, Any]], skipped: Any = ()) -> Any:
        """Return the first result that is not `NotImplemented`; `NotImplemented` if there is none.

        `skipped`: classes whose methods in C are not called.
        """
        for receiver, method, argument in asked:
            result = self.special(receiver, method, argument)
            if result is MISSING:
                native = self.lookup(type(receiver), method)
                if native is MISSING or is_a(receiver, skipped):
                    continue
                if native is object.__ne__:
                    result = self.special(receiver, "__eq__", argument)
                    if result is not MISSING and result is not NotImplemented:
                        return not self.is_true(result)
                if result is MISSING:
                    result = natively(what, native, receiver, argument)
            if result is not NotImplemented:
                return result
        return NotImplemented

    def compare(self, name: str, left: Any, right: Any) -> Any:
        self.values.require_known(left, right)
        self.dicts.complete_all((left, right))
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            return natively("a comparison", COMPARE[name], left, right)
        method, reflected, symbol = _COMPARISONS[name]
        asked = [(left, f"__{method}__", right), (right, f"__{reflected}__", left)]
        if type(right) is not type(left) and issubclass(type(right), type(left)):
            asked.reverse()
        result = self._first_answer("a comparison", asked)
        if result is not NotImplemented:
            return result
        if name in ("EQ", "NE"):
            return (left is right) is (name == "EQ")
        raise TypeError(f"'{symbol}' not supported between instances of {_kinds(left, right)}")

    def is_true(self, value: Any) -> bool:
        if value is True or value is False or value is None:
            return bool(value)
        if is_a(value, torch.Tensor):
            return bool(value)
        self.values.require_known(value)
        result = self.special(value, "__bool__")
        if result is MISSING:
            length = self.special(value, "__len__")
            if length is not MISSING:
                return bool(checked_length(length))
            return self.dicts.length(value) > 0 if is_a(value, dict) else bool(value)
        if type(result) is not bool:
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result

    def format(self, value: Any, conversion: str, spec: Any) -> str:
        if is_a(value, torch.Tensor):
            raise Break(BreakKind.DATA, "a tensor becomes text")
        self.values.require_known(value)
        if conversion == "ascii":
            text = self.format(value, "repr", "")
            return format(text.encode("ascii", "backslashreplace").decode(), spec)
        name = self._text_method(type(value), conversion)
        text = self.special(value, name, *((spec,) if name == "__format__" else ()))
        if text is not MISSING:
            if not is_a(text, str):
                kind = type(text).__name__
                told = (
                    f"must return a str, not {kind}"
                    if name == "__format__"
                    else f"returned non-string (type {kind})"
                )
                raise TypeError(f"{name} {told}")
            return text if name == "__format__" else format(text, spec)
        self.dicts.complete_all((value,))
        if conversion:
            value = natively("a text", _CONVERSIONS[conversion], value)
        shown = str(natively("a text", format, value, spec))
        if " at 0x" in shown:
            raise Break(BreakKind.OUTSIDE, "a text shows where in memory an object is")
        return shown

    def _text_method(self, kind: type, conversion: str) -> str:
        """Return the method that formats an object; those of `object` forward to another."""
        if not conversion and self.lookup(kind, "__format__") is not object.__dict__["__format__"]:
            return "__format__"
        if conversion in ("", "str") and self.lookup(kind, "__str__") is not object.__dict__["__str__"]:
            return "__str__"
        return "__repr__"


def _kinds(left: Any, right: Any) -> str:
    return f"'{type(left).__name__}' and '{type(right).__name__}'"


class TracedItems(Items):
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.values, self.dicts = tracer, tracer.values, tracer.dicts
        self.lookup, self.special = tracer.classes.lookup, tracer.calls.special
        self.python_method = tracer.classes.python_method

    def as_keys(self, values: Sequence[Any]) -> Sequence[Any]:
        """Trace the values' own `__hash__` and `__eq__`, to guard what they read, before C runs them."""
        for value in values:
            if type(value) is tuple:
                self.as_keys(value)
                continue
            kind: Any = type(value)
            if is_python_class(kind) and not is_trusted_class(kind):
                self.special(value, "__hash__")
                self.special(value, "__eq__", value)
        return values

    def get(self, container: Any, key: Any) -> Any:
        self.values.require_known(container)
        result = self.special(container, "__getitem__", key)
        if result is not MISSING:
            return result
        if is_a(container, dict):
            return self.plain_get(container, key)
        if not is_a(container, type):
            return container[self.as_index(key)]
        found = self.lookup(container, "__class_getitem__")
        if isinstance(found, classmethod) and not is_trusted_class(container):
            return self.tracer.calls.call(types.MethodType(found.__func__, container), (key,), {})
        return container[key]

    def as_index(self, key: Any) -> Any:
        """Return a key with objects that define `__index__` replaced by integers."""
        if type(key) is tuple:
            return tuple(map(self.as_index, key))
        if type(key) is slice:
            self.values.require_known(key)
            return slice(self.as_index(key.start), self.as_index(key.stop), self.as_index(key.step))
        number = self.special(key, "__index__")
        return key if number is MISSING else number

    def plain_get(self, container: Any, key: Any) -> Any:
        """Do what `dict.__getitem__` does, `__missing__` and factories included."""
        self.as_keys((key,))
        value = self.dicts.get(container, key)
        if value is not MISSING:
            return value
        missing = self.special(container, "__missing__", key)
        if missing is not MISSING:
            return missing
        if is_a(container, collections.defaultdict) and container.default_factory is not None:
            value = self.tracer.calls.call(container.default_factory, (), {})
            self.dicts.set(container, key, value)
            return value
        raise KeyError(key)

    def set(self, container: Any, key: Any, new: Any) -> None:
        self.values.require_known(container)
        if is_a(container, torch.Tensor):
            container[self.as_index(key)] = new
            return
        if self.special(container, "__setitem__", key, new) is not MISSING:
            return
        if is_a(container, dict):
            self.plain_set(container, key, new)
        elif is_a(key, slice):
            natively("an assignment", operator.setitem, container, self.as_index(key), self.iterable(new))
        else:
            container[self.as_index(key)] = new

    def plain_set(self, container: dict[Any, Any], key: Any, new: Any) -> None:
        self.as_keys((key,))
        if is_a(container, collections.OrderedDict):
            # Its order is stored next to the table: only its own method updates both.
            self.dicts.forget_unread(container, key)
            collections.OrderedDict.__setitem__(container, key, new)
        else:
            self.dicts.set(container, key, new)

    def delete(self, container: Any, key: Any) -> None:
        self.values.require_known(container)
        if self.special(container, "__delitem__", key) is not MISSING:
            return
        if is_a(container, dict):
            self.dicts.complete(container)
        del container[key]

    def contains(self, container: Any, value: Any) -> bool:
        self.values.require_known(container)
        if is_a(container, torch.Tensor):
            return value in container
        result = self.special(container, "__contains__", value)
        if result is not MISSING:
            return self.tracer.operators.is_true(result)
        if is_a(container, dict):
            self.as_keys((value,))
            return self.dicts.has(container, value)
        kind = type(container)
        own = is_python_class(kind) and self.lookup(kind, "__contains__") is MISSING
        if own and self.python_method(container, "__iter__") is not None:
            return self._is_among(SteppedIterator(self.tracer, self.iterate(container)), value)
        self.dicts.complete_all((container,))
        if is_a(container, list | tuple):
            items = list(elements(container))
            if any(self.python_method(each, "__eq__") is not None for each in (value, *items)):
                return self._is_among(items, value)
        return bool(natively("a search", operator.contains, container, value))

    def _is_among(self, items: Iterable[Any], value: Any) -> bool:
        operators = self.tracer.operators
        return any(item is value or operators.is_true(operators.compare("EQ", item, value)) for item in items)

    # Iteration

    def iterate(self, value: Any) -> Iterator[Any]:
        if is_a(value, torch.Tensor):
            if value.dim() == 0:
                raise TypeError("iteration over a 0-d tensor")
            return iter(torch.unbind(value, 0))
        self.values.require_known(value)
        if is_a(value, SteppedGenerator | SteppedIterator):
            return value  # type: ignore[no-any-return]
        result: Any = self.special(value, "__iter__")
        if result is not MISSING:
            if self.lookup(type(result), "__next__") is MISSING:
                raise TypeError(f"iter() returned non-iterator of type '{type(result).__name__}'")
            return result  # type: ignore[no-any-return]
        if is_python_class(type(value)) and self.lookup(type(value), "__iter__") is MISSING:
            if self.python_method(value, "__getitem__") is None:
                raise TypeError(f"'{type(value).__name__}' object is not iterable")
            raise Break(BreakKind.UNSUPPORTED, f"iteration over a {type(value).__name__} by __getitem__")
        self.dicts.complete_all((value,))
        return iter(value)

    def next(self, iterator: Iterator[Any]) -> Any:
        self.values.require_known(iterator)
        if is_a(iterator, SteppedGenerator) or is_native_iterator(iterator):
            return next(iterator)
        result = self.special(iterator, "__next__")
        if result is not MISSING:
            return result
        if is_a(iterator, types.GeneratorType):
            raise Break(BreakKind.UNSUPPORTED, "a generator that was started outside of the trace")
        return next(iterator)

    def iterable(self, value: Any) -> Any:
        """Return the value in a form that code in C can iterate over."""
        self.values.require_known(value)
        if self.python_method(value, "__iter__") is None:
            return value
        iterator = self.iterate(value)
        return iterator if is_native_iterator(iterator) else SteppedIterator(self.tracer, iterator)

    def pairs(self, value: Any) -> Any:
        """Return the value in a form that code in C can make a dict of."""
        if not is_python_class(type(value)):
            return value
        return self.mapping(value) if self.tracer.attributes.has(value, "keys") else self.iterable(value)

    def unpack(self, value: Any) -> Sequence[Any]:
        if type(value) in (list, tuple):
            return value  # type: ignore[no-any-return]
        iterator = self.iterate(value)
        if is_native_iterator(iterator) or is_a(iterator, SteppedGenerator):
            return list(iterator)
        return list(SteppedIterator(self.tracer, iterator))

    def mapping(self, value: Any) -> Mapping[Any, Any]:
        self.values.require_known(value)
        if is_a(value, dict):
            # C merges the items, unless the class overrides `__iter__` and how its keys are read.
            plain = self.lookup(type(value), "__iter__") is dict.__dict__["__iter__"]
            if plain or not any(self.python_method(value, name) for name in ("keys", "__getitem__")):
                self.dicts.complete(value)
                return dict(dict_items(value))
        keys = self.unpack(self.tracer.calls.call_method(value, "keys", (), {}))
        return {key: self.get(value, key) for key in keys}
