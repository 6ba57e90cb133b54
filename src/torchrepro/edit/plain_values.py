"""Values that are made in one line: what could stand in the place of a tensor's own, plainest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from torchrepro.edit.held_tensors import laid_out_like, made_like

Form = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
"""(tensor, place of the failing element) -> the same tensor with other values."""


def plainest(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """Ones; zeros for integers, which are mostly indices and exist everywhere; True for masks."""
    return _full(tensor, 1 if _has_fractions(tensor) or tensor.dtype is torch.bool else 0)


def zeros(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """Zeros; ones for integers."""
    return _full(tensor, 0 if _has_fractions(tensor) or tensor.dtype is torch.bool else 1)


def signs(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """1 or -1 throughout, by the sign of the failing element."""
    value = tensor.detach()[place].item()
    return _full(tensor, -1 if not isinstance(value, complex) and value < 0 else 1)


def one_digit(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """The failing element throughout, to one digit."""
    return _full(tensor, rounded(tensor.detach()[place].item(), 1))


def same_throughout(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """The failing element throughout, as it is."""
    return _full(tensor, tensor.detach()[place].item())


def counting(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """0, 1, 2, ..."""
    if tensor.dtype is torch.bool:
        return plainest(tensor, place)
    numbers = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    return _made(numbers.to(tensor.dtype), tensor)


def noise(tensor: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """Normal numbers from a generator with seed 0, made on the CPU; other types count."""
    if not _has_fractions(tensor):
        return counting(tensor, place)
    return _made(seeded_noise(tensor), tensor)


FORMS: tuple[Form, ...] = (plainest, counting, signs, zeros, one_digit, same_throughout, noise)
"""For tensors of several elements: values that vary are likelier to matter than which value it is."""
FORMS_OF_ONE: tuple[Form, ...] = (plainest, zeros, signs, one_digit)


def forms_of(tensor: torch.Tensor) -> tuple[Form, ...]:
    return FORMS if tensor.numel() > 1 else FORMS_OF_ONE


def seeded_noise(tensor: torch.Tensor) -> torch.Tensor:
    """`torch.randn(shape, generator=torch.Generator().manual_seed(0))` in the tensor's dtype."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    return drawn.to(device=tensor.device, dtype=tensor.dtype)


def rounder_values(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor with its numbers written to one digit, two, three: the shortest first."""
    if not _has_fractions(tensor) or tensor.is_complex():
        return
    values = tensor.detach().reshape(-1).tolist()
    for digits in (1, 2, 3):
        numbers = torch.tensor([rounded(value, digits) for value in values], dtype=torch.float64)
        yield _made(numbers.to(tensor.dtype).to(tensor.device).reshape(tensor.shape), tensor)


def rounded(value: complex, digits: int) -> complex:
    """A number to so many digits; what is no number or no fraction stays as it is."""
    return float(f"{value:.{digits - 1}e}") if isinstance(value, float) else value


def _full(tensor: torch.Tensor, value: complex) -> torch.Tensor:
    return _made(torch.full(tensor.shape, value, dtype=tensor.dtype, device=tensor.device), tensor)


def _made(values: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """These values with the layout and the kind of another tensor."""
    return made_like(laid_out_like(values, model), model)


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex
