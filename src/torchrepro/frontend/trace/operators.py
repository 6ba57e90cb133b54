"""Operators, items and iteration during a trace: special methods in Python are stepped, C does the rest."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchrepro.frontend.codegen.objects import dict_items, elements
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.operations import BINARY, COMPARE, UNARY
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.assignments import Assignments
from torchrepro.frontend.trace.classes import MISSING, is_python_class, is_trusted_class
from torchrepro.frontend.trace.dunders import (
    COMPARE_METHODS,
    COMPARE_SYMBOLS,
    UNARY_METHODS,
    binary_candidates,
    unsupported,
)
from torchrepro.frontend.trace.foreign import has_objects, natively
from torchrepro.frontend.trace.native import is_native_iterator
from torchrepro.frontend.trace.stepped import SteppedIterator, SteppedSequence

_CONVERSIONS: Mapping[str, Callable[[object], str]] = {"str": str, "repr": repr, "ascii": ascii}

_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)


def checked_length(length: Any) -> int:
    """What `__len__` gave, where it is one."""
    number = operator.index(length)
    if number < 0:
        raise ValueError("__len__() should return >= 0")
    return number


class Operators(Assignments):
    def special(self, value: Any, name: str, *args: Any) -> Any:
        """Call a special method that the class defines in Python; `MISSING` where it does not."""
        found = self.python_method(value, name)
        if found is None:
            return MISSING
        return self.call_function(self._bind(found, value, type(value), name), args, {})

    def python_method(self, value: Any, name: str) -> Any:
        """The special method of an object where its class defines it in Python; None otherwise."""
        kind = type(value)
        if not is_python_class(kind):
            return None
        found = self.lookup(kind, name)
        if found is MISSING or is_a(found, types.WrapperDescriptorType | types.MethodDescriptorType):
            return None
        return None if is_a(found, types.BuiltinFunctionType) else found

    def require_known(self, *values: Any) -> None:
        for value in values:
            if self.world.is_opaque(value):
                raise Break(BreakKind.OPAQUE, f"use of a {type(value).__qualname__}, which is not followed")

    # Operators

    def unary(self, name: str, value: Any) -> Any:
        self.require_known(value)
        result = self.special(value, UNARY_METHODS[name])
        return UNARY[name](value) if result is MISSING else result

    def binary(self, name: str, left: Any, right: Any) -> Any:
        self.require_known(left, right)
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            if is_a(left, dict | list) or is_a(right, dict | list):
                self.world.complete_all((left, right))
            if name == "INPLACE_ADD" and type(left) is list:
                right = self.iterable(right)
            return natively("an operator", BINARY[name], left, right)
        self.world.complete_all((left, right))
        # Sequences join and repeat only when nobody has the operator of numbers.
        joins = name.removeprefix("INPLACE_") in ("ADD", "MULTIPLY")
        for receiver, method in binary_candidates(self.lookup, name, left, right):
            argument = left if receiver is right and method.startswith("__r") else right
            result = self.special(receiver, method, argument)
            if result is MISSING:
                native = self.lookup(type(receiver), method)
                if native is MISSING or (joins and is_a(receiver, _SEQUENCES)):
                    continue
                result = natively("an operator", native, receiver, argument)
            if result is not NotImplemented:
                return result
        if joins and is_a(left, _SEQUENCES) | is_a(right, _SEQUENCES):
            operands = (
                self.as_index(each) if is_python_class(type(each)) else each for each in (left, right)
            )
            return natively("an operator", BINARY[name], *operands)
        raise unsupported(name, left, right)

    def compare(self, name: str, left: Any, right: Any) -> Any:
        self.require_known(left, right)
        self.world.complete_all((left, right))
        if not (is_python_class(type(left)) or is_python_class(type(right))):
            return natively("a comparison", COMPARE[name], left, right)
        method, reflected = COMPARE_METHODS[name]
        asked = [(left, method, right), (right, reflected, left)]
        if type(right) is not type(left) and issubclass(type(right), type(left)):
            asked.reverse()
        for receiver, wanted, argument in asked:
            result = self.special(receiver, wanted, argument)
            if self.lookup(type(receiver), wanted) is object.__ne__:
                result = self.special(receiver, "__eq__", argument)
                if result is not MISSING and result is not NotImplemented:
                    return not self.is_true(result)
            if result is MISSING:
                native = self.lookup(type(receiver), wanted)
                if native is MISSING:
                    continue
                result = natively("a comparison", native, receiver, argument)
            if result is not NotImplemented:
                return result
        if name in ("EQ", "NE"):
            return (left is right) is (name == "EQ")
        kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
        raise TypeError(f"'{COMPARE_SYMBOLS[name]}' not supported between instances of {kinds}")

    def is_true(self, value: Any) -> bool:
        if value is True or value is False or value is None:
            return bool(value)
        if is_a(value, torch.Tensor):
            return bool(value)
        self.require_known(value)
        result = self.special(value, "__bool__")
        if result is MISSING:
            length = self.special(value, "__len__")
            if length is not MISSING:
                return bool(checked_length(length))
            return self.world.length_of(value) > 0 if is_a(value, dict) else bool(value)
        if type(result) is not bool:
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result

    def format(self, value: Any, conversion: str, spec: Any) -> str:
        if is_a(value, torch.Tensor):
            raise Break(BreakKind.DATA, "a tensor becomes text")
        self.require_known(value)
        if conversion == "ascii":
            text = self.format(value, "repr", "")
            return format(text.encode("ascii", "backslashreplace").decode(), spec)
        name = self._text_method(type(value), conversion)
        text = self.special(value, name, spec) if name == "__format__" else self.special(value, name)
        if text is not MISSING:
            if not is_a(text, str):
                told = (
                    "must return a str, not {}" if name == "__format__" else "returned non-string (type {})"
                )
                raise TypeError(f"{name} {told.format(type(text).__name__)}")
            return text if name == "__format__" else format(text, spec)
        self.world.complete_all((value,))
        if type(value) in (list, tuple, dict) and has_objects(value):
            return self._text_of_container(value)
        if conversion:
            value = natively("a text", _CONVERSIONS[conversion], value)
        shown = str(natively("a text", format, value, spec))
        if " at 0x" in shown:
            raise Break(BreakKind.OUTSIDE, "a text shows where in memory an object is")
        return shown

    def _text_method(self, kind: type, conversion: str) -> str:
        """The method that makes text of an object, where those of `object` lead to another."""
        if not conversion and self.lookup(kind, "__format__") is not object.__dict__["__format__"]:
            return "__format__"
        if conversion in ("", "str") and self.lookup(kind, "__str__") is not object.__dict__["__str__"]:
            return "__str__"
        return "__repr__"

    def _text_of_container(self, value: Any) -> str:
        """As C writes it, with the `__repr__` of each item stepped."""
        if is_a(value, dict):
            pairs = [f"{self.format(k, 'repr', '')}: {self.format(v, 'repr', '')}" for k, v in value.items()]
            return "{" + ", ".join(pairs) + "}"
        text = ", ".join(self.format(item, "repr", "") for item in value)
        if is_a(value, list):
            return f"[{text}]"
        return f"({text},)" if len(value) == 1 else f"({text})"

    # Items

    def as_keys(self, values: Sequence[Any]) -> None:
        """What their own `__hash__` and `__eq__` read is guarded by stepping them, before C runs them."""
        for value in values:
            if type(value) is tuple:
                self.as_keys(value)
                continue
            kind: Any = type(value)
            if is_python_class(kind) and not is_trusted_class(kind):
                self.special(value, "__hash__")
                self.special(value, "__eq__", value)

    def get_item(self, container: Any, key: Any) -> Any:
        self.require_known(container)
        if is_a(container, dict):
            return self._dict_item(container, key)
        if is_a(container, type):
            return self._class_item(container, key)
        result = self.special(container, "__getitem__", key)
        if result is not MISSING:
            return result
        return container[self.as_index(key)]

    def _class_item(self, container: Any, key: Any) -> Any:
        result = self.special(container, "__getitem__", key)
        if result is not MISSING:
            return result
        found = self.lookup(container, "__class_getitem__")
        if isinstance(found, classmethod) and not is_trusted_class(container):
            return self.call_function(self._bind_to_class(found, container), (key,), {})
        return container[key]

    def as_index(self, key: Any) -> Any:
        """A key in which objects with an `__index__` of their own are numbers."""
        if type(key) is tuple:
            return tuple(map(self.as_index, key))
        if type(key) is slice:
            self.require_known(key)
            return slice(self.as_index(key.start), self.as_index(key.stop), self.as_index(key.step))
        number = self.special(key, "__index__")
        return key if number is MISSING else number

    def _dict_item(self, container: dict[Any, Any], key: Any) -> Any:
        result = self.special(container, "__getitem__", key)
        return self.plain_dict_item(container, key) if result is MISSING else result

    def plain_dict_item(self, container: Any, key: Any) -> Any:
        """What `dict.__getitem__` does, `__missing__` and factories included."""
        self.as_keys((key,))
        value = self.world.item_of(container, key)
        if value is not MISSING:
            return value
        missing = self.special(container, "__missing__", key)
        if missing is not MISSING:
            return missing
        if is_a(container, collections.defaultdict) and container.default_factory is not None:
            value = self.call_function(container.default_factory, (), {})
            self.world.set_key(container, key, value)
            return value
        raise KeyError(key)

    def set_item(self, container: Any, key: Any, new: Any) -> None:
        self.require_known(container)
        if is_a(container, torch.Tensor):
            container[self.as_index(key)] = new
            return
        if self.special(container, "__setitem__", key, new) is not MISSING:
            return
        if is_a(container, dict):
            self.plain_set_item(container, key, new)
        else:
            container[self.as_index(key)] = self.iterable(new) if is_a(key, slice) else new

    def plain_set_item(self, container: dict[Any, Any], key: Any, new: Any) -> None:
        self.as_keys((key,))
        if is_a(container, collections.OrderedDict):
            # Its order is kept beside the table: only its own method knows of both.
            self.world.forget_unread(container, key)
            collections.OrderedDict.__setitem__(container, key, new)
        else:
            self.world.set_key(container, key, new)

    def delete_item(self, container: Any, key: Any) -> None:
        self.require_known(container)
        if self.special(container, "__delitem__", key) is not MISSING:
            return
        if is_a(container, dict):
            self.world.complete(container)
        del container[key]

    def contains(self, container: Any, value: Any) -> bool:
        self.require_known(container)
        if is_a(container, torch.Tensor):
            return value in container
        result = self.special(container, "__contains__", value)
        if result is not MISSING:
            return self.is_true(result)
        if is_a(container, dict):
            self.as_keys((value,))
            return self.world.has_key(container, value)
        if (
            is_python_class(type(container))
            and self.lookup(type(container), "__contains__") is MISSING
            and self.lookup(type(container), "__iter__") is not None
            and any(self.python_method(container, name) is not None for name in ("__iter__", "__getitem__"))
        ):
            for item in SteppedIterator(self, self.get_iter(container)):
                if item is value or self.is_true(self.compare("EQ", item, value)):
                    return True
            return False
        self.world.complete_all((container,))
        if is_a(container, list | tuple) and self._needs_stepping(value, container):
            items = elements(container)
            return any(item is value or self.is_true(self.compare("EQ", item, value)) for item in items)
        return bool(natively("a search", operator.contains, container, value))

    def _needs_stepping(self, value: Any, items: Sequence[Any]) -> bool:
        return self.python_method(value, "__eq__") is not None or any(
            self.python_method(item, "__eq__") is not None for item in elements(items)
        )

    # Iteration

    def get_iter(self, value: Any) -> Iterator[Any]:
        if is_a(value, torch.Tensor):
            if value.dim() == 0:
                raise TypeError("iteration over a 0-d tensor")
            return iter(torch.unbind(value, 0))
        self.require_known(value)
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
            return iter(SteppedSequence(self, value))
        self.world.complete_all((value,))
        return iter(value)

    def next_item(self, iterator: Iterator[Any]) -> Any:
        self.require_known(iterator)
        if is_a(iterator, SteppedGenerator) or is_native_iterator(iterator):
            return next(iterator)
        result = self.special(iterator, "__next__")
        if result is not MISSING:
            return result
        if is_a(iterator, types.GeneratorType):
            raise Break(BreakKind.UNSUPPORTED, "a generator that was started outside of the trace")
        return next(iterator)

    def iterable(self, value: Any) -> Any:
        """The value as code in C can iterate over it."""
        self.require_known(value)
        if self.python_method(value, "__iter__") is not None or (
            self.python_method(value, "__next__") is None
            and self.python_method(value, "__getitem__") is not None
            and not is_a(value, list | tuple | dict | str)
        ):
            iterator = self.get_iter(value)
            return iterator if is_native_iterator(iterator) else SteppedIterator(self, iterator)
        return value

    def pairs(self, value: Any) -> Any:
        """The value as code in C can make a dict of it."""
        if not is_python_class(type(value)):
            return value
        return self.mapping(value) if self.has_attr(value, "keys") else self.iterable(value)

    def unpack(self, value: Any) -> Sequence[Any]:
        if type(value) in (list, tuple):
            return value  # type: ignore[no-any-return]
        iterator = self.get_iter(value)
        if is_native_iterator(iterator) or is_a(iterator, SteppedGenerator):
            return list(iterator)
        return list(SteppedIterator(self, iterator))

    def mapping(self, value: Any) -> Mapping[Any, Any]:
        self.require_known(value)
        if is_a(value, dict):
            # As C merges it: by the items, unless it does not iterate as a dict and is read in its own way.
            plain = self.lookup(type(value), "__iter__") is dict.__dict__["__iter__"]
            if plain or not any(self.python_method(value, name) for name in ("keys", "__getitem__")):
                self.world.complete(value)
                return dict(dict_items(value))
        keys = self.unpack(self.call_method(value, "keys", (), {}))
        return {key: self.get_item(value, key) for key in keys}
