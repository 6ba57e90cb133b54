"""The tensors inside whatever a model returns or takes, and the scalar loss over all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in sequences, mappings, dataclasses, `ModelOutput`-like objects and distributions.

    Each tensor object is found once, at the first path that leads to it: objects may refer to one another.
    """
    yield from _walk(value, path, set())


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for suffix, child in _children(value):
            yield from _walk(child, path + suffix, seen)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield f"[{key!r}]", child
    elif isinstance(value, Sequence):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    elif isinstance(value, Set):
        for child in value:
            yield "{}", child
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif not isinstance(value, (type, torch.nn.Module)) and hasattr(value, "__dict__"):
        # Distributions, caches, namespaces: plain objects that carry tensors as attributes.
        for name, child in vars(value).items():
            yield f".{name}", child


def reduce_to_scalar_loss(out: Any) -> torch.Tensor:
    """Return a scalar that depends on every differentiable element of `out`, each with its own weight."""
    tensors = [tensor for _, tensor in tensors_in(out) if _is_differentiable(tensor)]
    wanting = [tensor for tensor in tensors if tensor.requires_grad]
    terms = [_weighted_sum(tensor) for tensor in wanting or tensors]
    if not terms:
        raise TypeError(
            f"cannot reduce {type(out).__name__} to a loss: it holds no floating point tensor; "
            "run forward only"
        )
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term.to(device=loss.device)
    return loss


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _weighted_sum(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:  # float8 has no arithmetic
        tensor = tensor.to(torch.float32)
    if tensor.dim() == 0:
        return tensor
    return (tensor * weights_like(tensor)).sum()


def weights_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return one of ±1/8, ±3/8, ±5/8, ±7/8 for each element, scattered without a pattern."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    octant = index.mul_(0x9E3779B1).bitwise_right_shift_(13).bitwise_and_(7)
    return octant.mul_(2).sub_(7).to(tensor.dtype).div_(8).reshape(tensor.shape)
