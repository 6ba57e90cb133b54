"""Parts of tensors: a window of the values, laid out in memory as the whole was.

Tensors that need not have a size of their own: one element is stretched along it, as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from torchrepro.edit.values.held_tensors import Held, made_like
from torchrepro.nouns.repro import Repro

_LOOKS_UP = ("index", "embedding", "gather", "scatter", "take", "put", "nll_loss", "cross_entropy", "one_hot")


@torch.no_grad()
def window(tensor: torch.Tensor, starts: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """The part of a tensor that begins at `starts`, in memory of its own, with the order of its strides.

    Sizes beyond the tensor repeat its last element: a literal that follows others may grow.
    """
    part = tensor.detach()
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        wanted = torch.arange(start, start + size, device=part.device).clamp(max=part.shape[axis] - 1)
        if size != part.shape[axis] or start:
            part = part.index_select(axis, wanted)
    return made_like(laid_out_like(part, tensor), tensor)


@torch.no_grad()
def laid_out_like(values: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A copy of the values with the layout of another tensor of this rank.

    Contiguous and permuted tensors have no gaps and stay so. Where there are gaps the strides stay as they
    are, in a memory just large enough; a dimension that repeats its one element still does.
    """
    if values.dim() != model.dim() or model.is_contiguous():
        return values.clone(memory_format=torch.contiguous_format)
    strides = _strides(values.shape, model)
    span = 1 + sum((size - 1) * step for size, step in zip(values.shape, strides, strict=True))
    memory = torch.zeros(max(span, 1), dtype=values.dtype, device=values.device)
    made = memory.as_strided(values.shape, strides)
    if made.is_contiguous():
        return values.clone(memory_format=torch.contiguous_format)
    for axis, step in enumerate(strides):
        if step == 0:
            values = values.narrow(axis, 0, 1)
    target = made
    for axis, step in enumerate(strides):
        if step == 0:
            target = target.narrow(axis, 0, 1)
    target.copy_(values)
    return made


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same values without gaps, in the usual order, in memory of its own."""
    with torch.no_grad():
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
    return made_like(values, tensor)


def _strides(shape: Sequence[int], model: torch.Tensor) -> list[int]:
    repeated = [step == 0 and size > 1 for size, step in zip(model.shape, model.stride(), strict=True)]
    if not _without_gaps(model):
        return list(model.stride())
    strides = [0] * len(shape)
    step = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (model.stride(axis), model.shape[axis])):
        if repeated[axis]:
            continue
        strides[axis] = step
        step *= shape[axis]
    return strides


def _without_gaps(tensor: torch.Tensor) -> bool:
    step = 1
    axes = [axis for axis in range(tensor.dim()) if tensor.shape[axis] > 1 and tensor.stride(axis) > 0]
    for axis in sorted(axes, key=tensor.stride):
        if tensor.stride(axis) != step:
            return False
        step *= tensor.shape[axis]
    return True


def indices_below(
    repro: Repro, tensors: Sequence[tuple[Held, torch.Tensor]], limits: Sequence[tuple[int, int]]
) -> dict[Held, torch.Tensor]:
    """Whole numbers that were indices into a dimension, brought below its new size.

    That a tensor holds indices is guessed: the graph looks something up, and all of its values were below a
    size that has become smaller. `limits` has the sizes before and after.
    """
    if not limits or not any(map(_looks_up, repro.graph.graph.nodes)):
        return {}
    found = {}
    for held, tensor in tensors:
        if tensor.dtype not in (torch.int64, torch.int32) or not tensor.numel():
            continue
        highest = int(held.tensor.max())
        new = [after for before, after in limits if highest < before]
        if new and int(tensor.max()) >= min(new):
            found[held] = made_like(tensor.detach() % min(new), tensor)
    return found


def _looks_up(node: Node) -> bool:
    if node.op == "placeholder":
        return False  # it may be named after an op that was cut
    name = str(getattr(node.target, "__name__", node.target))
    if name in ("getitem", "setitem"):
        return not isinstance(node.args[1], int)
    return any(word in name for word in _LOOKS_UP)
