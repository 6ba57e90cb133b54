"""Compare what an operator's fake kernel gives with what its real one computes: everything but the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchrepro.nouns.contracts import Contract
from torchrepro.torch_api.fake import FakeTensorMode, ShapeEnv, fake_errors
from torchrepro.torch_api.pytree import leaves_by_path, tree_map_only

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Difference(NamedTuple):
    """One thing that the fake result has and the real one has not."""

    contract: Contract
    subject: str
    fake: str
    real: str
    size: tuple[int, ...] = ()
    """Of the real result."""


class Raised(NamedTuple):
    """The fake kernel raised."""

    error: Exception

    @property
    def is_missing(self) -> bool:
        """Whether there is no fake kernel at all."""
        return isinstance(self.error, fake_errors.UnsupportedOperatorException)

    @property
    def needs_data(self) -> bool:
        """Whether the result depends on data that a fake tensor has not."""
        kinds = (fake_errors.DataDependentOutputException, fake_errors.DynamicOutputShapeException)
        return isinstance(self.error, kinds)

    @property
    def line(self) -> str:
        first = str(self.error).strip().partition("\n")[0]
        return f"{type(self.error).__name__}: {first}" if first else type(self.error).__name__


def fake_arguments(arguments: Arguments) -> tuple[FakeTensorMode, Arguments]:
    """Return the arguments as fake tensors that alias one another as the real ones do, with fixed sizes."""
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def faked(tensor: torch.Tensor) -> Any:
        return mode.from_tensor(tensor.detach(), static_shapes=True)

    return mode, tree_map_only(torch.Tensor, faked, arguments)


def run_fake(op: Any, mode: FakeTensorMode, arguments: Arguments) -> Any:
    """Return the result of the fake kernel, or `Raised`: it is code of the user, and may raise anything."""
    args, kwargs = arguments
    try:
        with mode, torch.no_grad():
            return op(*args, **kwargs)
    except Exception as error:
        return Raised(error)


def differences(fake: Any, real: Any) -> Iterator[Difference]:
    """Yield what differs between a fake and a real result, the most telling first for each tensor."""
    ours, theirs = leaves_by_path(fake, "result"), leaves_by_path(real, "result")
    if [subject for subject, _ in ours] != [subject for subject, _ in theirs]:
        declared, seen = (f"{len(leaves)} result{'s' * (len(leaves) != 1)}" for leaves in (ours, theirs))
        yield Difference(Contract.OUTPUTS, "results", declared, seen)
        return
    for (subject, one), (_, other) in zip(ours, theirs, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            yield from _of_tensors(subject, one, other)
        elif _kind(one) != _kind(other):
            yield Difference(Contract.OUTPUTS, subject, _kind(one), _kind(other))


def _of_tensors(subject: str, fake: torch.Tensor, real: torch.Tensor) -> Iterator[Difference]:
    size = tuple(real.shape)
    same_shape = fake.dim() == real.dim() and not any(map(_differs, fake.shape, real.shape))
    if not same_shape:
        yield Difference(Contract.SHAPE, subject, f"shape {tuple(fake.shape)}", f"shape {size}", size)
    for contract, word in ((Contract.DTYPE, "dtype"), (Contract.DEVICE, "device")):
        # A fake tensor of `cuda` has an index, a real one too: `cuda` alone stands for the current one.
        one, other = (str(getattr(tensor, word)).removesuffix(":0") for tensor in (fake, real))
        if one != other:
            yield Difference(contract, subject, f"{word} {one}", f"{word} {other}", size)
    if fake.layout is not real.layout:
        yield Difference(Contract.OUTPUTS, subject, f"layout {fake.layout}", f"layout {real.layout}", size)
    elif fake.layout is torch.strided and same_shape and real.numel():
        # The stride of a dimension with one element says nothing.
        told = [place for place, length in enumerate(real.shape) if length > 1]
        if any(_differs(fake.stride(place), real.stride(place)) for place in told):
            declared, seen = f"stride {fake.stride()}", f"stride {real.stride()}"
            yield Difference(Contract.STRIDE, subject, declared, seen, size)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    for word, types in (
        ("a truth value", (bool, torch.SymBool)),
        ("an integer", (int, torch.SymInt)),
        ("a number", (float, torch.SymFloat)),
    ):
        if isinstance(value, types):
            return word
    return "None" if value is None else f"a {type(value).__name__}"


def _differs(fake: int | torch.SymInt, real: int) -> bool:
    """Return whether a size is another one. An unbacked symbol stands for any."""
    return isinstance(fake, int) and fake != real
