"""State: all that a call can reach, at one moment; cloned, put back in place, and described for comparison.

A clone holds the same containers with other tensors in their places. Plain Python then runs on those tensors,
so the user's own keep their values, their gradients, their versions and their place in autograd's graph.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchrepro.judge.clone import TensorCloner, is_plain, window
from torchrepro.judge.op_forms import OpMode
from torchrepro.judge.tensors import inner_tensors, is_wrapper_subclass
from torchrepro.state.reachable import ATOMS, Contents, Holder, Reach, contents_of
from torchrepro.torch_api.modes import DisableTorchDispatch
from torchrepro.torch_api.ops import schema_of
from torchrepro.torch_api.pytree import tree_leaves
from torchrepro.torch_api.tensors import set_version, storage_number, version_of


@dataclass(frozen=True, eq=False)
class State:
    """The arguments of a call and the contents of everything that it can reach."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    contents: tuple[tuple[Holder, Contents], ...]

    opaque: tuple[str, ...] = ()
    """Paths of what the call could change and that cannot be put back: iterators."""

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> State:
        """Read all that `function(*args, **kwargs)` can reach, as it is now."""
        reach = Reach(function, args, kwargs)
        contents = tuple((holder, holder.read()) for holder in reach.holders)
        return cls(args, kwargs, contents, tuple(reach.opaque))

    def again(self) -> State:
        """Read the same objects again."""
        return replace(self, contents=tuple((holder, holder.read()) for holder, _ in self.contents))

    def cloned(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> State:
        """Return the same state with clones for tensors; aliasing between them is kept."""
        clone = _Cloning(TensorCloner(dtype, device))
        contents = tuple(
            (holder, [(clone(key), clone(value)) for key, value in pairs]) for holder, pairs in self.contents
        )
        args: tuple[Any, ...] = clone(self.args)
        return State(args, {name: clone(value) for name, value in self.kwargs.items()}, contents)

    def put(self) -> None:
        """Give every object these contents again."""
        for holder, contents in self.contents:
            holder.put(contents)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all tensors in it, gradients included."""
        yield from _tensors((self.args, tuple(self.kwargs.values())))
        for _, pairs in self.contents:
            for pair in pairs:
                yield from _tensors(pair)

    def storages(self) -> set[int]:
        return {key for tensor in self.tensors() for key in storages_of(tensor)}


@contextmanager
def in_state(state: State, afterwards: State) -> Iterator[None]:
    """Put `state` in place for the body, then `afterwards`, even if the body raises."""
    try:
        state.put()
        yield
    finally:
        afterwards.put()


@contextmanager
def running_in(state: State, afterwards: State) -> Iterator[UndoWrites]:
    """Enter `in_state` for a run of the call; also undo its writes to tensors that are not in `state`."""
    writes = UndoWrites(state.storages())
    with in_state(state, afterwards):
        try:
            with writes:
                yield writes
        finally:
            writes.undo()


@dataclass(frozen=True, eq=False)
class Description:
    """What can be seen of a state: tensors and plain data, by the path that leads to them."""

    tensors: Mapping[str, torch.Tensor]
    data: Mapping[str, Any]


def describe_state(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Description:
    """Return the current state of a call, including objects that it has made."""
    tensors: dict[str, torch.Tensor] = {}
    data: dict[str, Any] = {}

    def describe(path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors[path] = value
            if value.is_leaf and value.grad is not None:
                tensors[f"{path}.grad"] = value.grad
        elif isinstance(value, (*ATOMS, np.ndarray)):
            data[path] = value
        elif isinstance(value, tuple):
            data[f"keys of {path}"] = len(value)
            for index, item in enumerate(value):
                describe(f"{path}[{index}]", item)
        else:
            data[path] = _Kept(type(value).__qualname__)

    for name, value in [*enumerate(args), *kwargs.items()]:
        describe(f"inputs[{name!r}]", value)
    for holder in Reach(function, args, kwargs).holders:
        if holder.draws:
            continue
        pairs = holder.read()
        keys = [key if isinstance(key, ATOMS) else type(key).__name__ for key, _ in pairs]
        if keys or not holder.attributes:
            data[f"keys of {holder.path}"] = sorted(keys, key=repr) if holder.attributes else keys
        for index, (key, value) in enumerate(pairs):
            describe(holder.path_of(index, key), value)
    return Description(tensors, data)


def storages_of(tensor: torch.Tensor) -> list[int]:
    """Return the storages of a tensor; those of a wrapper are its parts'."""
    if is_wrapper_subclass(tensor):
        inner, _ = inner_tensors(tensor)
        return [key for part in inner.values() for key in storages_of(part)]
    try:
        return [storage_number(tensor.untyped_storage())]
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


class UndoWrites(OpMode):
    """Around a run on clones: other tensors that were there before are copied before they are written to.

    `known` are the storages of the clones. Storages that the run itself makes are its own; an address that is
    used again after a free belongs to the run as well.
    """

    def __init__(self, known: Collection[int]) -> None:
        super().__init__()
        self._own = set(known)
        self._kept: dict[int, tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]] = {}

    @property
    def out_of_sight(self) -> bool:
        """Whether the run wrote to tensors that it was not known to reach."""
        return bool(self._kept)

    def run_op(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for position, argument in enumerate(schema_of(func).arguments if schema_of(func).is_mutable else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                for tensor in _tensors_of_op(value):
                    self._keep(tensor)
        result = func(*args, **kwargs)
        given = {key for tensor in _tensors_of_op((args, kwargs)) for key in storages_of(tensor)}
        for tensor in _tensors_of_op(result):
            self._own.update(key for key in storages_of(tensor) if key not in given)
        return result

    def undo(self) -> None:
        """Put back values and versions. Checked on torch 2.11 to 2.15 (`_unsafe_set_version_counter`)."""
        for tensor, version, row, before in self._kept.values():
            row.copy_(before)
            if not tensor.is_inference():
                set_version(tensor, version)

    def _keep(self, tensor: torch.Tensor) -> None:
        if not is_plain(tensor):
            return
        storage = tensor.untyped_storage()
        if storage_number(storage) in self._own or storage_number(storage) in self._kept:
            return
        with torch.no_grad(), DisableTorchDispatch():
            row = window(storage, torch.uint8)
            self._kept[storage_number(storage)] = (tensor, version_of(tensor), row, row.clone())


def _tensors_of_op(value: Any) -> list[torch.Tensor]:
    return [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]


_DEPTH = 4
_NOT_DATA = object()


def python_state(model: Any) -> dict[str, Any]:
    """Return copies of the plain data in a function's closure, a torch module's attributes or a module.

    Capture must replay side effects on such data (counters, caches); a lost one is as wrong as a wrong
    number. Only what belongs to the model is read: globals are shared by everything in the process, except
    those of a module that was made for one run (a source closure).
    """
    copies = ((path, _copy_of_data(value, _DEPTH)) for path, value in _places_of_data(model))
    return {path: copied for path, copied in copies if copied is not _NOT_DATA}


def _places_of_data(model: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(model, torch.nn.Module):
        for name, child in model.named_modules():
            for key, value in vars(child).items():
                if not key.startswith("_") and key != "training":
                    yield f"{name}.{key}" if name else key, value
    elif isinstance(model, types.MethodType):
        yield from _places_of_data(model.__func__)
        owner = model.__self__
        if isinstance(owner, torch.nn.Module):
            yield from _places_of_data(owner)
        else:
            yield from ((f"self.{key}", value) for key, value in getattr(owner, "__dict__", {}).items())
    elif isinstance(model, types.FunctionType):
        for name, cell in zip(model.__code__.co_freevars, model.__closure__ or (), strict=True):
            yield f"closure.{name}", contents_of(cell)
        yield from vars(model).items()
    elif isinstance(model, types.ModuleType):
        yield from ((name, value) for name, value in vars(model).items() if not name.startswith("__"))


def _copy_of_data(value: Any, depth: int) -> Any:
    if isinstance(value, ATOMS):
        return value
    if depth == 0:
        return _NOT_DATA
    if isinstance(value, (list, tuple)):
        return [item for item in (_copy_of_data(v, depth - 1) for v in value) if item is not _NOT_DATA]
    if isinstance(value, dict):
        copies = {
            key: _copy_of_data(item, depth - 1) for key, item in value.items() if isinstance(key, ATOMS)
        }
        return {key: item for key, item in copies.items() if item is not _NOT_DATA}
    return _NOT_DATA
