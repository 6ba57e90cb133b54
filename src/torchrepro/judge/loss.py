"""Reduce whatever a model returns to one scalar, so that backward can run through all of it.

A plain sum would do, but it hides errors: the gradient of `softmax(x).sum()` is zero whatever the kernel
does, and so is that of a layer norm. Each element therefore gets a weight of its own. The weights are odd
multiples of 1/8, exact in every floating dtype down to float8_e5m2: eager, compiled and the float64 reference
see the same numbers, and no rounding enters through them.
"""

from __future__ import annotations

from typing import Any

import torch

from torchrepro.judge.leaves import tensors_in


def reduce_to_scalar_loss(out: Any) -> torch.Tensor:
    """A scalar that depends on every differentiable element of `out`, each with its own weight."""
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
    """One of ±1/8, ±3/8, ±5/8, ±7/8 for each element, scattered without a pattern."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    octant = index.mul_(0x9E3779B1).bitwise_right_shift_(13).bitwise_and_(7)
    return octant.mul_(2).sub_(7).to(tensor.dtype).div_(8).reshape(tensor.shape)
