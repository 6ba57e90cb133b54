"""The state of torch around a call, as far as it changes what a graph is or computes.

Checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchrepro.torch_api.modes import DeviceContext

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
