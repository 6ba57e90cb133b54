"""Items of containers in a trace: length, subscripts, membership, iteration."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import contains, setitem
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.codegen.objects import dict_items, elements
from torchrepro.frontend.graph_breaks import Unsupported
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.operations import Items
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.classes import MISSING, is_python_class, is_trusted_class
from torchrepro.frontend.trace.foreign import SteppedIterator, natively
from torchrepro.frontend.trace.rules import is_native_iterator

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_ITERATE = torch.Tensor.__iter__


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
        if is_a(container, defaultdict) and container.default_factory is not None:
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
            natively("an assignment", setitem, container, self.as_index(key), self.iterable(new))
        else:
            container[self.as_index(key)] = new

    def plain_set(self, container: dict[Any, Any], key: Any, new: Any) -> None:
        self.as_keys((key,))
        if is_a(container, OrderedDict):
            # Its order is stored next to the table: only its own method updates both.
            self.dicts.forget_unread(container, key)
            OrderedDict.__setitem__(container, key, new)
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
        return bool(natively("a search", contains, container, value))

    def _is_among(self, items: Iterable[Any], value: Any) -> bool:
        operators = self.tracer.operators
        return any(item is value or operators.is_true(operators.compare("EQ", item, value)) for item in items)

    # Iteration

    def iterate(self, value: Any) -> Iterator[Any]:
        if is_a(value, torch.Tensor) and torch.Tensor.__iter__ is _ITERATE:
            self.tracer.classes.guard_method(value, "__iter__")
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
            raise Unsupported(f"iteration over a {type(value).__name__} by __getitem__")
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
            raise Unsupported("a generator that was started outside of the trace")
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
