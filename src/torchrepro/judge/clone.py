"""Clone inputs and modules, aliasing and all, so that a run can do to them what it likes.

`dtype=torch.float64` widens floating tensors on the way: each storage goes from its own dtype to float64 in
one copy, and no narrow copy exists in between.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torchrepro.judge.clone_tensor import TensorCloner
from torchrepro.nouns.errors import CannotSerialise

T = TypeVar("T")

_IMMUTABLE = (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def clone_inputs(
    values: T,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    shared: list[str] | None = None,
) -> T:
    """Return a deep copy of nested arguments in which tensors alias one another exactly as in the original.

    It never fails: what can be neither rebuilt nor deep-copied (a lock, an open file, a process group) is the
    same object in the copy, and a line about it is appended to `shared`.
    """
    cloner = _Cloner(TensorCloner(dtype, device), [] if shared is None else shared)
    made: T = cloner.clone(values, "input")
    return made


def clone_module(
    module: torch.nn.Module, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.nn.Module:
    """Return a deep copy with parameters and buffers of its own; tied ones stay tied, hooks are kept."""
    cloner = _Cloner(TensorCloner(dtype, device), [])
    try:
        return cloner.clone_module(module)
    except Exception as exc:
        culprit = _uncopyable_attribute(module)
        raise CannotSerialise(
            f"{type(module).__name__} cannot be copied: {culprit or 'its'} deep copy raises"
            f" {type(exc).__name__}: {exc}",
            next_step="give that object a __deepcopy__, or pass a function that builds the model",
        ) from exc


class _Cloner:
    """One cloning: what was met before is answered from the memo, as `copy.deepcopy` does."""

    def __init__(self, tensors: TensorCloner, shared: list[str]) -> None:
        self._tensors = tensors
        self._shared = shared
        self._memo: dict[int, Any] = {}

    def clone(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, _IMMUTABLE):
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        made = self._made(value, path)
        self._memo[id(value)] = made
        # deepcopy's own convention: keeps the original alive, so that its id is not given to another object.
        self._memo.setdefault(id(self._memo), []).append(value)
        return made

    def _made(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensors.clone(value)
        if isinstance(value, torch.Generator):
            made = torch.Generator(device=value.device)
            return made.set_state(value.get_state())
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.copy(order="K")
        if isinstance(value, torch.nn.Module):
            return self._or_shared(lambda: self.clone_module(value), value, path)
        if isinstance(value, (list, tuple, dict, set)):
            return self._container(value, path)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value, path)
        return self._or_shared(lambda: self._deepcopied(value), value, path)

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is list:
            made: list[Any] = []
            self._memo[id(value)] = made
            made.extend(self.clone(item, f"{path}[{i}]") for i, item in enumerate(value))
            return made
        if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_make")):
            items = [self.clone(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return tuple(items) if kind is tuple else kind._make(items)
        if kind in (dict, OrderedDict, defaultdict):
            table: Any = defaultdict(value.default_factory) if kind is defaultdict else kind()
            self._memo[id(value)] = table
            table.update(
                {self.clone(key, path): self.clone(item, f"{path}[{key!r}]") for key, item in value.items()}
            )
            return table
        return self._or_shared(lambda: self._deepcopied(value), value, path)

    def _fields(self, value: Any, path: str) -> Any:
        """Copy a dataclass or `ModelOutput` without calling its constructor, which may compute."""
        if isinstance(value, dict) or hasattr(type(value), "__deepcopy__"):
            return self._or_shared(lambda: self._deepcopied(value), value, path)
        made = object.__new__(type(value))
        self._memo[id(value)] = made
        names = [field.name for field in dataclasses.fields(value)]
        names += [name for name in getattr(value, "__dict__", {}) if name not in names]
        for name in names:
            if hasattr(value, name):
                object.__setattr__(made, name, self.clone(getattr(value, name), f"{path}.{name}"))
        return made

    def clone_module(self, module: torch.nn.Module) -> torch.nn.Module:
        for tensor in [*module.parameters(), *module.buffers()]:
            self._memo.setdefault(id(tensor), self._tensors.clone(tensor))
        made: torch.nn.Module = self._deepcopied(module)
        return made

    def _deepcopied(self, value: Any) -> Any:
        with _CloneTensorsInside(self._tensors):
            return copy.deepcopy(value, self._memo)

    def _or_shared(self, attempt: Callable[[], Any], value: Any, path: str) -> Any:
        try:
            return attempt()
        except Exception as exc:  # an object's own __deepcopy__ can raise anything
            self._shared.append(
                f"{path} ({type(value).__name__}) is shared with the original: {type(exc).__name__}: {exc}"
            )
            return value


class _CloneTensorsInside(TorchFunctionMode):
    """During `copy.deepcopy`, tensors are cloned our way: aliasing kept, non-leaves allowed, widened.

    Parameters copy themselves through `self.data.clone()`, which is seen here as well.
    """

    def __init__(self, tensors: TensorCloner) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self._tensors.clone(tensor)
                memo.setdefault(id(memo), []).append(tensor)
            return memo[id(tensor)]
        if func is torch.Tensor.clone:
            return self._tensors.clone(args[0].detach())
        return func(*args, **(kwargs or {}))


def _uncopyable_attribute(module: torch.nn.Module) -> str:
    """The path of the first attribute that cannot be deep-copied by itself; empty if there is none such."""
    children = {id(child) for child in module.modules()}
    for prefix, child in module.named_modules():
        for name, value in vars(child).items():
            if name.startswith("_") and name in torch.nn.Module().__dict__:
                continue
            if isinstance(value, torch.Tensor) or id(value) in children:
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f"'{prefix}.{name}' ({type(value).__name__}):".replace("'.", "'")
    return ""
