"""Stepped callables and iterators: given to code in C in place of the user's, which are so stepped too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


class SteppedCallable:
    """A function of the user's as a native (`sorted`, `map`) may call it."""

    __slots__ = ("function", "interpreter")

    def __init__(self, interpreter: Interpreter, function: Any) -> None:
        self.interpreter = interpreter
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.calls.call(self.function, args, kwargs)


class SteppedSequence:
    """An object that is iterated over by `value[0]`, `value[1]`, …: CPython's own iterator asks for each."""

    __slots__ = ("interpreter", "value")

    def __init__(self, interpreter: Interpreter, value: Any) -> None:
        self.interpreter = interpreter
        self.value = value

    def __getitem__(self, index: int) -> Any:
        return self.interpreter.items.get(self.value, index)


class SteppedIterator(Iterator[Any]):
    """An iterator of the user's as a native (`list`, `zip`) may advance it."""

    __slots__ = ("interpreter", "iterator")

    def __init__(self, interpreter: Interpreter, iterator: Any) -> None:
        self.interpreter = interpreter
        self.iterator = iterator

    def __next__(self) -> Any:
        return self.interpreter.items.next(self.iterator)
