"""What it takes to write a tensor down: the fewer characters, the plainer it is.

Zeros and ones are free; one value throughout costs its digits; a progression more, seeded noise more than
that, and values of its own each element's digits. A dtype and a layout that have to be spelled out cost
something, and so does every dimension beyond the first.
"""

from __future__ import annotations

import torch

from torchrepro.bundle.storage_digests import remembered
from torchrepro.edit.values.plain_values import seeded_noise, short_number
from torchrepro.edit.values.plainness import USUAL_DTYPES

_PROGRESSION = 20
_NOISE = 30
OWN_VALUES = 60
"""Where elements are written one by one."""
_SPELLED_OUT = 40
_EXOTIC = 10_000
_FEW = 64
"""Elements of which each is looked at."""
_MANY = 1 << 16
"""Elements above which nobody looks whether it is seeded noise."""
_UNREAD = 1 << 20
"""Elements above which all count as irregular where the first ones are: reading them takes longer."""
_DIGITS = 10


def cost_of_tensor(tensor: torch.Tensor) -> int:
    """The cost of one tensor."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return _EXOTIC
    if tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta" or tensor._is_zerotensor():
        return _EXOTIC
    unusual = (not tensor.is_contiguous()) + (tensor.dtype not in USUAL_DTYPES)
    about = _SPELLED_OUT * unusual + max(0, tensor.dim() - 1)
    return about + cost_of_values(tensor)


def cost_of_values(tensor: torch.Tensor) -> int:
    """The cost of what is in an ordinary tensor, whatever its kind."""
    if not tensor.numel():
        return 0
    window = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj())
    return remembered(tensor, ("cost", window), lambda: _cost_of_values(tensor))


@torch.no_grad()
def _cost_of_values(tensor: torch.Tensor) -> int:
    flat = tensor.detach().reshape(-1)
    if flat.dtype.itemsize < 2 or flat.dtype in (torch.uint16, torch.uint32, torch.uint64):
        try:
            flat = flat.to(torch.float32)  # these types lack most operations
        except (NotImplementedError, RuntimeError):
            return OWN_VALUES + _DIGITS * flat.numel()  # and these all of them: numbers of four bits
    head = flat[:_FEW]
    if _is_uniform(head) and _is_uniform(flat):
        return cost_of_number(flat[0])
    if _is_progression(head) and _is_progression(flat):
        return _PROGRESSION + cost_of_number(flat[0]) + cost_of_number(flat[1] - flat[0])
    if flat.numel() > _UNREAD:
        return OWN_VALUES + _DIGITS * flat.numel()
    if (
        flat.numel() <= _MANY
        and flat.dtype.is_floating_point
        and torch.equal(tensor.detach(), seeded_noise(tensor))
    ):
        return _NOISE
    if flat.numel() <= _FEW:
        return OWN_VALUES + sum(1 + cost_of_number(number) for number in flat)
    return OWN_VALUES + int((flat != flat[0]).sum()) * _DIGITS


def cost_of_number(number: torch.Tensor) -> int:
    """The characters of a number beyond those of the plainest ones."""
    value = number.item()
    return 0 if value in (0, 1) else len(short_number(value, number.dtype))


def _is_uniform(flat: torch.Tensor) -> bool:
    return bool((flat == flat[0]).all()) or (not flat.is_complex() and bool(flat.isnan().all()))


def _is_progression(flat: torch.Tensor) -> bool:
    return flat.dtype is not torch.bool and bool((flat.diff() == flat[1] - flat[0]).all())
