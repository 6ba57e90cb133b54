"""State: all that a call can reach, at one moment; cloned, put back in place, and described for comparison.

A clone holds the same containers with other tensors in their places. Plain Python then runs on those tensors,
so the user's own keep their values, their gradients, their versions and their place in autograd's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchrepro.judge.clone_tensor import TensorCloner
from torchrepro.state.holders import ATOMS, Contents, Holder
from torchrepro.state.reachable import Reach, reach_of


@dataclass(frozen=True, eq=False)
class State:
    """The arguments of a call and the contents of everything that it can reach."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    contents: tuple[tuple[Holder, Contents], ...]

    @classmethod
    def now(cls, reach: Reach, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> State:
        return cls(args, kwargs, tuple((holder, holder.read()) for holder in reach.holders))

    def again(self) -> State:
        """The same objects with the contents that they have by now."""
        return replace(self, contents=tuple((holder, holder.read()) for holder, _ in self.contents))

    def cloned(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> State:
        """The same state with clones for tensors; aliasing between them is kept."""
        clone = _Cloning(TensorCloner(dtype, device))
        contents = tuple(
            (holder, [(clone(key), clone(value)) for key, value in pairs]) for holder, pairs in self.contents
        )
        args: tuple[Any, ...] = clone(self.args)
        return State(args, {name: clone(value) for name, value in self.kwargs.items()}, contents)

    def put(self) -> None:
        """Every object gets these contents again."""
        for holder, contents in self.contents:
            holder.put(contents)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors in it, gradients included."""
        yield from _tensors((self.args, tuple(self.kwargs.values())))
        for _, pairs in self.contents:
            for pair in pairs:
                yield from _tensors(pair)

    def storages(self) -> set[int]:
        return {key for tensor in self.tensors() for key in storages_of(tensor)}


@contextmanager
def in_state(state: State, afterwards: State) -> Iterator[None]:
    """The body meets this state; then all is as `afterwards` says, whatever happens."""
    try:
        state.put()
        yield
    finally:
        afterwards.put()


@dataclass(frozen=True, eq=False)
class Description:
    """What can be seen of a state: tensors and plain data, by the path that leads to them."""

    tensors: Mapping[str, torch.Tensor]
    data: Mapping[str, Any]


def describe_state(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Description:
    """The state of a call as it is now, objects included that it has made."""
    tensors: dict[str, torch.Tensor] = {}
    data: dict[str, Any] = {}
    describe = _Describing(tensors, data)
    for name, value in [*enumerate(args), *kwargs.items()]:
        describe.value(f"inputs[{name!r}]", value)
    for holder in reach_of(function, args, kwargs).holders:
        if not holder.draws:
            describe.holder(holder)
    return Description(tensors, data)


def storages_of(tensor: torch.Tensor) -> list[int]:
    """The storages that a tensor stands on; those of a wrapper are its parts'."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [key for name in names for key in storages_of(getattr(tensor, name))]
    try:
        return [tensor.untyped_storage()._cdata]
    except (NotImplementedError, RuntimeError):  # sparse, lazy: no storage of its own
        return []


class _Cloning:
    """Clones what holds numbers; containers and objects stay, and have their contents cloned as holders."""

    def __init__(self, tensors: TensorCloner) -> None:
        self._tensors = tensors
        self._arrays: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensors.clone(value)
        if isinstance(value, np.ndarray):
            return self._arrays.setdefault(id(value), (value, value.copy(order="K")))[1]
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self(item) for item in value]
            if all(made is item for made, item in zip(items, value, strict=True)):
                return value
            if type(value) is tuple:
                return tuple(items)
            return value._make(items) if hasattr(value, "_make") else value
        return value


class _Describing:
    def __init__(self, tensors: dict[str, torch.Tensor], data: dict[str, Any]) -> None:
        self._tensors = tensors
        self._data = data

    def holder(self, holder: Holder) -> None:
        pairs = holder.read()
        keys = [key if isinstance(key, ATOMS) else type(key).__name__ for key, _ in pairs]
        if keys or not holder.attributes:
            self._data[f"keys of {holder.path}"] = sorted(keys, key=repr) if holder.attributes else keys
        for index, (key, value) in enumerate(pairs):
            self.value(holder.path_of(index, key), value)

    def value(self, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensors[path] = value
            if value.is_leaf and value.grad is not None:
                self._tensors[f"{path}.grad"] = value.grad
        elif isinstance(value, (*ATOMS, np.ndarray)):
            self._data[path] = value
        elif isinstance(value, tuple):
            self._data[f"keys of {path}"] = len(value)
            for index, item in enumerate(value):
                self.value(f"{path}[{index}]", item)
        else:
            self._data[path] = _Kept(type(value).__qualname__)


@dataclass(frozen=True)
class _Kept:
    """Stands for an object whose own contents are described elsewhere."""

    kind: str

    def __repr__(self) -> str:
        return f"a {self.kind}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        if value.is_leaf and value.grad is not None:
            yield value.grad
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
