"""Clone single tensors: each storage once, every window on it, with all that users see of them."""

from __future__ import annotations

import copy
from typing import Any

import torch

from torchrepro.judge.exotic import inner_tensors
from torchrepro.judge.wide_tensors import (
    Precision,
    below_dispatch_modes,
    elements_of_storage,
    is_plain,
    over_storage,
    storage_key,
    widen,
    window,
)
from torchrepro.torch_api.modes import DisableTorchFunction, is_traceable_wrapper_subclass
from torchrepro.torch_api.tensors import is_functorch_wrapped, make_subclass, zero_tensor


class TensorCloner:
    """One cloning: the same tensor gives the same clone, and windows on one storage stay so.

    A storage seen under two dtypes stays one storage unless one of them is widened.
    """

    def __init__(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> None:
        self._precision = None if dtype is None and device is None else _precision(dtype, device)
        self._clones: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rows: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """The clone of this tensor. The original is neither written to, nor detached, nor waited for."""
        known = self._clones.get(id(tensor))
        if known is None:
            known = (tensor, self._cloned(tensor))
            self._clones[id(tensor)] = known
        return known[1]

    def _cloned(self, tensor: torch.Tensor) -> torch.Tensor:
        with DisableTorchFunction(), torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if is_lazy(tensor):
                lazy: torch.Tensor = copy.deepcopy(tensor)
                return lazy
            value = self._value(tensor)
            made = self._same_class(value, tensor)
            if not is_plain(tensor) or tensor.is_leaf:
                _set_requires_grad(made, tensor.requires_grad and tensor.is_leaf)
        if tensor.requires_grad and not tensor.is_leaf:
            made = _as_non_leaf(made)
        if tensor.is_leaf and tensor.grad is not None:
            made.grad = self.clone(tensor.grad)
        return made

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_plain(tensor):
            with below_dispatch_modes():
                return over_storage(self._row(tensor), tensor, self._dtype(tensor.dtype))
        detached = tensor.detach()
        if tensor._is_zerotensor():
            like = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            kind = like if self._precision is None else widen(like, self._precision)
            return zero_tensor(tuple(tensor.size()), kind.dtype, kind.device)
        if self._precision is not None and not tensor.is_quantized:
            wide = widen(detached, self._precision)
            return wide if wide is not detached else detached.clone()
        if _has_parts(tensor):
            return self._from_its_parts(tensor)
        return detached.clone()

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if self._precision is None else self._precision.widened(dtype)

    def _row(self, tensor: torch.Tensor) -> torch.Tensor:
        """The cloned storage of this tensor: widened, or byte for byte."""
        storage = tensor.untyped_storage()
        widened = self._dtype(tensor.dtype) is not tensor.dtype
        key = storage_key(tensor) if widened else (storage._cdata, torch.uint8)
        if key not in self._rows:
            source = elements_of_storage(tensor) if widened else window(storage, torch.uint8)
            row = source if self._precision is None else widen(source, self._precision)
            self._rows[key] = (source, row if row is not source else torch.empty_like(source).copy_(source))
        return self._rows[key][1]

    def _from_its_parts(self, tensor: Any) -> torch.Tensor:
        inner, context = inner_tensors(tensor)
        parts = {name: self.clone(part) for name, part in inner.items()}
        made: torch.Tensor = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        return made

    def _same_class(self, value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        if type(value) is not type(tensor):
            value = make_subclass(type(tensor), value)
        attributes = getattr(tensor, "__dict__", {})
        if getattr(tensor, "_is_param", False):  # a Parameter that is a tensor subclass
            value._is_param = True
        if is_plain(tensor) and attributes:
            value.__dict__.update({name: self._attribute(item) for name, item in attributes.items()})
        return value

    def _attribute(self, value: Any) -> Any:
        """What users hang on a tensor: tensors are cloned, small data is shared as it is."""
        return self.clone(value) if isinstance(value, torch.Tensor) else value


def is_lazy(tensor: torch.Tensor) -> bool:
    """A parameter of a lazy module: it has no shape yet."""
    return isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))


def _has_parts(tensor: Any) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor)) and not is_functorch_wrapped(tensor)


def _precision(dtype: torch.dtype | None, device: torch.device | None) -> Precision:
    """Nothing is narrower than a byte: without a dtype, the device alone changes."""
    return Precision(dtype or torch.uint8, device)


def _set_requires_grad(tensor: torch.Tensor, wanted: bool) -> None:
    if tensor.requires_grad != wanted:
        tensor.requires_grad_(wanted)


class _Rooted(torch.autograd.Function):
    """Gives a tensor the history of an identity on a new leaf, in place: its storage stays the one it has.

    A view of the leaf would refuse to be written to in place, and a copy would alias nothing.
    """

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def _as_non_leaf(tensor: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = torch.empty_like(tensor, requires_grad=True)
        made: torch.Tensor = _Rooted.apply(leaf, tensor)  # type: ignore[no-untyped-call]
    return made
