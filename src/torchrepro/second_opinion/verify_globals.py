"""Globals around the run beside of `verify`: which ones a callable may change, and how they are put back."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from torchrepro.frontend.trace.classes import is_trusted_file

_EMPTY = object()
_CONTAINERS = (list, dict, set, deque, defaultdict, OrderedDict)


@contextlib.contextmanager
def globals_put_back(target: Any) -> Iterator[None]:
    """The globals that a callable names, and the containers and tensors in them, are after it as before."""
    before = _Before()
    for function in _functions_of(target):
        before.note(function)
    try:
        yield
    finally:
        before.put_back()


def _functions_of(target: Any) -> Iterator[FunctionType]:
    """The Python that a callable begins with: its own, or that of its class and of the modules in it."""
    match target:
        case FunctionType():
            yield target
        case MethodType():
            yield from _functions_of(target.__func__)
            yield from _functions_of(target.__self__)
        case functools.partial():
            yield from _functions_of(target.func)
        case _:
            parts = target.modules() if isinstance(target, torch.nn.Module) else (target,)
            kinds = dict.fromkeys(kind for part in parts for kind in type(part).__mro__)
            for kind in kinds:
                yield from (member for member in vars(kind).values() if isinstance(member, FunctionType))


class _Before:
    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._bindings: list[tuple[dict[str, Any], str, Any]] = []
        self._contents: list[tuple[Any, Any]] = []

    def note(self, function: FunctionType) -> None:
        """Remember what the function, and those that it names, may change."""
        if id(function) in self._seen or is_trusted_file(function.__code__.co_filename):
            return
        self._seen.add(id(function))
        space = function.__globals__
        for name in _names_in(function.__code__):
            value = space.get(name, _EMPTY)
            self._bindings.append((space, name, value))
            if isinstance(value, FunctionType):
                self.note(value)
            else:
                self._note_contents(value)

    def _note_contents(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._contents.append((value, (value._version, value.detach().clone())))
        elif type(value) in _CONTAINERS:
            self._contents.append((value, value.copy()))
            for item in _items(value):
                self._note_contents(item)

    def put_back(self) -> None:
        for space, name, value in self._bindings:
            if value is _EMPTY:
                space.pop(name, None)
            elif space.get(name) is not value:
                space[name] = value
        for value, copy in self._contents:
            if isinstance(value, torch.Tensor):
                version, data = copy
                if value._version != version:
                    value.data.copy_(data)
            elif [*map(id, _items(value))] != [*map(id, _items(copy))]:
                value.clear()
                value.extend(copy) if isinstance(value, list | deque) else value.update(copy)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
