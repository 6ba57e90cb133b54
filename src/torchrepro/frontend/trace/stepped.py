"""Stepped callables and iterators: given to code in C in place of the user's, which are so stepped too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.operations import Operations


class SteppedCallable:
    """A function of the user's as a native (`sorted`, `map`) may call it."""

    __slots__ = ("function", "operations")

    def __init__(self, operations: Operations, function: Any) -> None:
        self.operations = operations
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operations.call_function(self.function, args, kwargs)


class SteppedSequence:
    """An object that is iterated over by `value[0]`, `value[1]`, …: CPython's own iterator asks for each."""

    __slots__ = ("operations", "value")

    def __init__(self, operations: Operations, value: Any) -> None:
        self.operations = operations
        self.value = value

    def __getitem__(self, index: int) -> Any:
        return self.operations.get_item(self.value, index)


class SteppedIterator(Iterator[Any]):
    """An iterator of the user's as a native (`list`, `zip`) may advance it."""

    __slots__ = ("iterator", "operations")

    def __init__(self, operations: Operations, iterator: Any) -> None:
        self.operations = operations
        self.iterator = iterator

    def __next__(self) -> Any:
        return self.operations.next_item(self.iterator)
