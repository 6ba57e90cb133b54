"""Plain values (`FORMS`) that take one line to create and may replace a tensor's own, the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from torchrepro.edit.held_tensors import laid_out_like, made_like

Form = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
"""(tensor, place of the failing element) -> the same tensor with other values."""


def throughout(number: Callable[[torch.Tensor, tuple[int, ...]], complex]) -> Form:
    """Return the form that has one number in all elements."""

    def form(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
        value = number(tensor.detach(), place)
        return _made(torch.full(tensor.shape, value, dtype=tensor.dtype, device=tensor.device), tensor)

    return form


plainest = throughout(lambda tensor, place: int(_has_fractions(tensor) or tensor.dtype is torch.bool))
"""Ones; zeros for integers, which are mostly indices, and 0 is valid for any size; True for masks."""


_other = throughout(lambda tensor, place: int(not (_has_fractions(tensor) or tensor.dtype is torch.bool)))
"""Zeros; ones for integers."""


_signs = throughout(lambda tensor, place: -1 if not tensor.is_complex() and tensor[place].item() < 0 else 1)
"""1 or -1 throughout, by the sign of the failing element."""


_one_digit = throughout(lambda tensor, place: rounded(tensor[place].item(), 1))
"""The failing element throughout, to one digit."""


_same = throughout(lambda tensor, place: tensor[place].item())
"""The failing element throughout, as it is."""


def counting(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor with the values 0, 1, 2, ..."""
    if tensor.dtype is torch.bool:
        return plainest(tensor, place)
    numbers = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    return _made(numbers.to(tensor.dtype), tensor)


def _noise(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor with seeded normal numbers; integers and booleans as `counting`."""
    if not _has_fractions(tensor):
        return counting(tensor, place)
    return _made(seeded_noise(tensor), tensor)


CONSTANTS: tuple[Form, ...] = (plainest, _signs, _other, _one_digit, _same)
"""One number in all elements."""


FORMS: tuple[Form, ...] = (plainest, counting, _signs, _other, _one_digit, _same, _noise)
"""For tensors of several elements: that values differ matters more often than which value it is."""


FORMS_OF_ONE: tuple[Form, ...] = (plainest, _other, _signs, _one_digit)


def forms_of(tensor: torch.Tensor) -> tuple[Form, ...]:
    return FORMS if tensor.numel() > 1 else FORMS_OF_ONE


def seeded_noise(tensor: torch.Tensor) -> torch.Tensor:
    """Return `torch.randn(shape, generator=torch.Generator().manual_seed(0))` in the tensor's dtype."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    return drawn.to(device=tensor.device, dtype=tensor.dtype)


def rounder_values(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensor with its values rounded to one, two and three significant digits."""
    if not _has_fractions(tensor) or tensor.is_complex():
        return
    values = tensor.detach().reshape(-1).tolist()
    for digits in (1, 2, 3):
        numbers = torch.tensor([rounded(value, digits) for value in values], dtype=torch.float64)
        yield _made(numbers.to(tensor.dtype).to(tensor.device).reshape(tensor.shape), tensor)


def rounded(value: complex, digits: int) -> complex:
    """Return a float to so many significant digits; other values unchanged."""
    return float(f"{value:.{digits - 1}e}") if isinstance(value, float) else value


def _made(values: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return these values with the layout and the kind of another tensor."""
    return made_like(laid_out_like(values, model), model)


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex
