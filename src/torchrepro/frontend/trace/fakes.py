"""Fakes: fake tensors, and what can be learned while torch runs an operation on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchrepro.frontend.codegen.objects import elements
from torchrepro.frontend.graph_breaks import Break, BreakKind, BreakReason, Unsupported
from torchrepro.frontend.raw_access import is_a
from torchrepro.torch_api.fake import FakeTensor, FakeTensorMode, fake_errors
from torchrepro.torch_api.modes import DisableTorchFunction, TorchDispatchMode, no_saved_tensors_hooks
from torchrepro.torch_api.modes import disable_current_modes as _disable_current_modes
from torchrepro.torch_api.names import FAKE_TENSOR_LOG
from torchrepro.torch_api.ops import schema_of
from torchrepro.torch_api.tensors import storage_number

_OF_TORCH = frozenset({"aten", "prim", "prims", "quantized", "quantized_decomposed", "_c10d_functional"})
_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
"""They write the running statistics in training; their schemas do not say so."""
_NO_FAKE_KERNEL = ("no fake impl", "with Meta tensors", "no meta kernel")


def fake_of(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    """Return the fake of a real tensor; views of one storage get fakes of one.

    Checked on torch 2.11 to 2.15 (`from_tensor`, `item_memo`).
    """
    fake = mode.from_tensor(real, static_shapes=True)
    fake.item_memo = None  # from 2.15 on it holds the value of a one-element tensor, unguarded
    return fake


def is_fake(value: object) -> bool:
    return is_a(value, FakeTensor)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested tuples, lists, dicts and slices."""
    if is_a(value, torch.Tensor):
        yield value
    elif is_a(value, tuple | list):
        for item in elements(value):
            yield from tensors_in(item)
    elif is_a(value, dict):
        for item in dict.values(value):
            yield from tensors_in(item)
    elif is_a(value, slice):
        yield from tensors_in((value.start, value.stop, value.step))


def storage_key(fake: torch.Tensor) -> int:
    """Return an id of the memory that a fake stands for: the same for all views, while one is alive."""
    with unseen():
        return storage_number(fake.untyped_storage())


unseen = DisableTorchFunction
"""Its block is not recorded, whatever is done to tensors there."""


@contextmanager
def outside_of_trace() -> Iterator[None]:
    """Run the block on real tensors only, as without a trace. Checked on torch 2.11 to 2.15."""
    with unseen(), _disable_current_modes():
        yield


_SPOKEN = {
    "__bool__": "a decision (if, while, and, or, not)",
    "__index__": "an index of Python's",
    "__int__": "int()",
    "__float__": "float()",
    "__complex__": "complex()",
    "__contains__": "`in`",
    "__getitem__": "an index",
    "item": "item()",
}
"""Methods that Python calls by itself, as the user writes them."""


def reason_of(error: Exception, operation: str) -> BreakReason | None:
    """Return why an operation cannot run on fakes; None where the error is its own (a wrong shape)."""
    operation = _SPOKEN.get(operation, operation)
    unallocated = is_a(error, RuntimeError) and "data is not allocated yet" in str(error)
    if unallocated or is_a(error, fake_errors.DataDependentOutputException):
        return BreakReason(
            BreakKind.DATA,
            f"{operation} needs the value of a tensor",
            "keep the decision in the graph (torch.where, masks) or compute the number before",
        )
    if is_a(error, fake_errors.DynamicOutputShapeException):
        return BreakReason(
            BreakKind.DATA,
            f"the shape of what {operation} gives depends on the values of a tensor",
            "torch.where or a product with the mask keeps the shape",
        )
    missing = is_a(error, RuntimeError) and any(words in str(error) for words in _NO_FAKE_KERNEL)
    unsupported = (
        fake_errors.UnsupportedOperatorException,
        fake_errors.UnsupportedFakeTensorException,
        fake_errors.UnsupportedMutationAliasingException,
    )
    if missing or is_a(error, unsupported):
        return BreakReason(
            BreakKind.UNSUPPORTED,
            f"{operation} does not run on tensors without data",
            "an operator of your own needs register_fake",
        )
    return None


def backward_reason_of(error: BaseException | None) -> BreakReason | None:
    """Return why a compiler cannot trace the backward of a graph; None for any other error."""
    if is_a(error, fake_errors.DynamicOutputShapeException):
        told = "the shape of what the backward of an operation gives depends on the values of a tensor"
        return BreakReason(BreakKind.DATA, told, "torch.where or a product with the mask keeps the shape")
    return None if error is None else backward_reason_of(error.__cause__)


@contextmanager
def quiet() -> Iterator[None]:
    """Drop logged errors of operations on fakes, and run no hooks of saved tensors: they get real ones."""
    logger = logging.getLogger(FAKE_TENSOR_LOG)
    before, logger.disabled = logger.disabled, True
    try:
        with no_saved_tensors_hooks():
            yield
    finally:
        logger.disabled = before


class Watcher(TorchDispatchMode):
    """Sees every operator below a torch function: what memory it writes, whether it draws random numbers.

    Schemas say so exactly; names of functions do not (`F.dropout` is random only in training).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forget()
        self.watching = False

    def forget(self) -> None:
        self.written: set[int] = set()
        self.random = False
        self.foreign = False
        """Whether an operator of the user's ran: it may do more than its schema says."""

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Allow operators in the body, which runs a recorded torch function; elsewhere they are a break."""
        self.forget()
        before, self.watching = self.watching, True
        try:
            yield
        finally:
            self.watching = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.watching:
            raise Unsupported(f"{func} is called past the functions of torch")
        for tensor in _written_by(func, args, kwargs):
            if any(_refuses_to_write(tensor, other) for other in tensors_in((args, kwargs))):
                raise Break(
                    BreakKind.RAISES, f"{func} writes elements that share memory", "clone() the tensor before"
                )
            self.written.add(storage_key(tensor))
        self.random = self.random or torch.Tag.nondeterministic_seeded in func.tags
        self.foreign = self.foreign or func.namespace not in _OF_TORCH
        return func(*args, **kwargs)


def _written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the arguments that an operator writes, by its schema."""
    if schema_of(func).is_mutable:
        for index, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from tensors_in(args[index] if index < len(args) else kwargs.get(argument.name))
    elif schema_of(func).name.partition("::")[2] in _BATCH_NORMS and args[5]:
        yield from tensors_in(args[3:5])


def _refuses_to_write(written: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether torch raises on real memory: elements are written twice, or read after.

    A tensor that was expanded; two parts of one storage that overlap. Compiled code would not raise.
    """
    if any(size > 1 and stride == 0 for size, stride in zip(written.shape, written.stride(), strict=True)):
        return True
    start, offset = written.storage_offset(), other.storage_offset()
    if other is written or (start == offset and written.shape == other.shape):
        return False
    apart = start + written.numel() <= offset or offset + other.numel() <= start
    both_dense = written.is_contiguous() and other.is_contiguous() and written.dtype == other.dtype
    return both_dense and not apart and storage_key(written) == storage_key(other)
