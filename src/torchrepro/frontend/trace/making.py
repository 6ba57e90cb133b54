"""Making: constructors that the recorder does not see or must not run, by functions that it records."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.fakes import outside_of_trace
from torchrepro.frontend.trace.special import Handler, special
from torchrepro.torch_api.tensors import tensor_classes

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_NUMBERS = (bool, int, float)


@special(torch.tensor, torch.as_tensor, keywords={"dtype"})
def _tensor(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Of 0-d tensors among numbers: torch would ask each for its value; a stack of them holds the same."""
    if not is_a(args[0], list | tuple):
        return NotImplemented
    leaves = list(_leaves(args[0]))
    tensors = [leaf for leaf in leaves if is_a(leaf, torch.Tensor)]
    if not tensors or not all(is_a(leaf, (torch.Tensor, *_NUMBERS)) for leaf in leaves):
        return NotImplemented
    dtype = kwargs.get("dtype") or functools.reduce(torch.promote_types, map(_dtype_of, leaves))
    here = torch.get_default_device()
    if any(
        tensor.dim() or tensor.device != here or torch.promote_types(tensor.dtype, dtype) != dtype
        for tensor in tensors
    ):
        return NotImplemented
    return _stacked(args[0], dtype) if _shape(args[0]) is not None else NotImplemented


def _leaves(data: Any) -> Iterator[Any]:
    if is_a(data, list | tuple):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _dtype_of(leaf: Any) -> torch.dtype:
    return leaf.dtype if is_a(leaf, torch.Tensor) else torch.tensor(leaf).dtype


def _shape(data: Any) -> tuple[int, ...] | None:
    """None where items are not of one shape."""
    if not is_a(data, list | tuple):
        return ()
    shapes = {_shape(item) for item in data}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(data), *inner)


def _stacked(data: Any, dtype: torch.dtype) -> torch.Tensor:
    if is_a(data, list | tuple):
        return torch.stack([_stacked(item, dtype) for item in data])
    if not is_a(data, torch.Tensor):
        return torch.tensor(data, dtype=dtype)
    # By way of Python's numbers: an integer becomes a double first.
    by_way: torch.Tensor = data.detach()
    if dtype.is_floating_point and not data.dtype.is_floating_point:
        by_way = by_way.to(torch.float64)
    return by_way.to(dtype)


def _old_constructor(kind: Any) -> Handler:
    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if any(not is_a(leaf, _NUMBERS) for leaf in _leaves(list(args))):
            return NotImplemented
        data = len(args) == 1 and type(args[0]) in (list, tuple)
        with outside_of_trace():
            # Of data, what it makes of them; otherwise sizes, of memory that holds anything.
            like = kind(*args) if data else kind()
            values, options = like.tolist(), {"dtype": like.dtype, "device": like.device}
        return torch.tensor(values, **options) if data else torch.empty(*(args or (0,)), **options)

    return handler


for _kind in (torch.Tensor, *(kind for kind in tensor_classes if kind.__module__ == "torch")):
    special(_kind, least=0, most=math.inf)(_old_constructor(_kind))
