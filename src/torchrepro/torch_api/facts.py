"""What guards ask about torch and tensors: the state around a call, dtypes, shapes, shared memory.

Never the values of tensors. Checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from torchrepro.torch_api import dynamo
from torchrepro.torch_api.modes import DeviceContext, DisableTorchFunction
from torchrepro.torch_api.tensors import storage_number

_ATTEMPTS = 4
"""How often to learn. More than once, as it learns nothing where two of the tensors are one object."""


class TensorFacts(NamedTuple):
    kind: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    """None for layouts that have none."""
    requires_grad: bool
    conjugated: bool
    """The value in memory is the conjugate of what it stands for; likewise the negative."""
    negated: bool
    inference: bool
    """Made in inference mode: autograd does not track it."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorFacts:
        with DisableTorchFunction():
            return cls(
                kind=type(tensor),
                dtype=tensor.dtype,
                device=_device(tensor.device),
                layout=tensor.layout,
                shape=tuple(tensor.shape),
                stride=tensor.stride() if tensor.layout is torch.strided else None,
                requires_grad=tensor.requires_grad,
                conjugated=tensor.is_conj(),
                negated=tensor.is_neg(),
                inference=tensor.is_inference(),
            )

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        parts = [
            f"{self.kind.__name__} of {dtype}, shape {self.shape}, stride {self.stride}, on {self.device}"
        ]
        parts += [str(self.layout)] if self.layout is not torch.strided else []
        parts += ["requires grad"] if self.requires_grad else []
        parts += [name for name in ("conjugated", "negated", "inference") if getattr(self, name)]
        return ", ".join(parts)


def storage_places(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return each one's storage, numbered in the order of appearance, and how far it is from the first in it.

    Storages that overlap count as one; distances are in bytes.
    """
    with DisableTorchFunction():
        spans = [_span(tensor) for tensor in tensors]
    group_of: dict[int, int] = {}
    reach = group = 0
    for start, end, identity, _ in sorted(spans):
        # One without memory (of a meta tensor, an empty one) starts at 0 and is identified by identity alone.
        group = group if start and start < reach else identity
        reach = max(reach, end)
        group_of[identity] = group
    numbers: dict[int, int] = {}
    first: dict[int, int] = {}
    pattern = tuple(numbers.setdefault(group_of[identity], len(numbers)) for _, _, identity, _ in spans)
    return pattern, tuple(
        start + offset - first.setdefault(number, start + offset)
        for (start, _, _, offset), number in zip(spans, pattern, strict=True)
    )


def _span(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Return where its storage begins and ends, which storage it is, and where in it the tensor begins."""
    if tensor.layout is not torch.strided:
        return 0, 0, id(tensor), 0
    storage = tensor.untyped_storage()
    start, offset = storage.data_ptr(), int(tensor.storage_offset()) * tensor.element_size()
    return start, start + storage.nbytes(), storage_number(storage), offset


@cache
def _device(device: torch.device) -> torch.device:
    """Return one object for all equal devices: every `tensor.device` is a new one."""
    return device


class QuickTensors:
    """A check of many tensors at once by torch's own C++: about ten times as fast as reading each fact.

    Only its True counts. Where it returns False the conditions written in Python decide, so the guards that
    a reader sees are exact; and where they hold, it learns from those tensors what to accept from then on.
    """

    __slots__ = ("_left", "check")

    def __init__(self) -> None:
        self.check: Callable[..., bool] = lambda *tensors: False
        """Whether these tensors certainly match those that were learned from (and are distinct objects)."""
        self._left = _ATTEMPTS

    def learn(self, *tensors: torch.Tensor) -> None:
        """Take type, dispatch keys, dtype, device, requires_grad, shape and stride. Keeps no tensor alive.

        Checked on torch 2.11 to 2.15; both keywords must be given, or it crashes.
        """
        if self._left:
            self._left -= 1
            guards = dynamo.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self.check = guards.check


_C = torch._C


class AmbientFacts(NamedTuple):
    """The facts. A tuple, because it is read and compared on every call: about two microseconds."""

    grad_mode: bool
    inference_mode: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    """(device, dtype) where it is on."""
    autocast_cache: bool
    default_dtype: torch.dtype
    default_device: torch.device | None
    deterministic_algorithms: bool
    deterministic_warn_only: bool
    float32_matmul_precision: str
    torch_function_enabled: bool
    torch_function_modes: tuple[type, ...]
    torch_dispatch_modes: tuple[type, ...]
    functorch_level: int | None
    anomaly_mode: bool
    attention_backends: tuple[bool, ...]
    """Flash, memory efficient, math, cuDNN: whether `scaled_dot_product_attention` may use each."""
    threads: int
    """A compiler for the CPU splits the work among them at compile time."""

    @classmethod
    def now(cls) -> AmbientFacts:
        """Return the facts of this thread."""
        modes = [_C._get_function_stack_at(index) for index in range(_C._len_torch_function_stack())]
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            _autocast() if _C._is_any_autocast_enabled() else (),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            _default_device(modes) if modes else None,
            _C._get_deterministic_algorithms(),
            _C._get_deterministic_algorithms_warn_only(),
            _matmul_precision(),
            _C._is_torch_function_enabled(),
            tuple(map(type, modes)),
            tuple(
                [type(_C._get_dispatch_stack_at(index)) for index in range(_C._len_torch_dispatch_stack())]
            ),
            _C._functorch.maybe_current_level(),
            torch.is_anomaly_enabled(),
            (
                _C._get_flash_sdp_enabled(),
                _C._get_mem_efficient_sdp_enabled(),
                _C._get_math_sdp_enabled(),
                _C._get_cudnn_sdp_enabled(),
            ),
            torch.get_num_threads(),
        )


def user_modes_active() -> bool:
    """Return whether a user's mode intercepts the operations of this thread, those of a capture included."""
    return bool(_C._len_torch_dispatch_stack()) or any(
        type(_C._get_function_stack_at(index)) is not DeviceContext
        for index in range(_C._len_torch_function_stack())
    )


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    )


def _default_device(modes: list[Any]) -> torch.device | None:
    """Return the device of `torch.set_default_device` or `with torch.device`, which are modes."""
    return next((mode.device for mode in reversed(modes) if type(mode) is DeviceContext), None)


def _matmul_precision() -> str:
    try:
        return str(_C._get_float32_matmul_precision())
    except RuntimeError:  # set by the new interface (`fp32_precision`), which the old one refuses to report
        return str(_C._get_fp32_precision_getter("cuda", "matmul"))
