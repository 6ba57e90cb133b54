"""Ambient: the state around a computation that changes what it computes or how it is compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Read by torch or its compilers and safe to show to a stranger: an allow-list, so that no secret slips in.
_TELLING_PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_LOGS", "TRITON_", "AOT_")
_TELLING_NAMES = frozenset(
    [
        "CXX",
        "CC",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "ATEN_CPU_CAPABILITY",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_CUDA_ALLOC_CONF",
    ]
)
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "REMOTE", "REDIS", "URL")


@dataclass(frozen=True, slots=True)
class Autocast:
    """Mixed precision on one kind of device."""

    device: str
    dtype: str
    enabled: bool = True
    cache_enabled: bool = True


@dataclass(frozen=True, slots=True)
class Ambient:
    """What stood around the call. The defaults are torch's own; `rng` is empty where it was not kept."""

    grad_enabled: bool = True
    inference_mode: bool = False
    autocast: tuple[Autocast, ...] = ()
    default_dtype: str = "float32"
    matmul_precision: str = "highest"
    deterministic: str = "off"
    """`off`, `warn` or `error`: torch.use_deterministic_algorithms."""
    threads: int | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Non-default values of the compilers' configs, by module (dynamo, inductor, functorch)."""
    left_out: tuple[str, ...] = ()
    """Config values that are not data (functions, classes) and so could not be kept."""
    environ: Mapping[str, str] = field(default_factory=dict)
    rng: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Generator states by device."""

    @property
    def non_default(self) -> dict[str, Any]:
        """What differs from a fresh process, for a person to read."""
        plain = Ambient()
        shown = ("grad_enabled", "inference_mode", "default_dtype", "matmul_precision", "deterministic")
        found = {name: getattr(self, name) for name in shown if getattr(self, name) != getattr(plain, name)}
        for cast in self.autocast:
            found[f"autocast {cast.device}"] = cast.dtype if cast.enabled else "off"
        for module, values in self.configs.items():
            found.update({f"{module}.{name}": value for name, value in values.items()})
        return found


def telling_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that change what is compiled; never one that could hold a secret."""
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _TELLING_NAMES or name.startswith(_TELLING_PREFIXES))
        and not any(word in name for word in _SECRET_WORDS)
        and not name.endswith(("_DIR", "_PATH", "_FILE"))
    }


def is_data(value: object) -> bool:
    """Return whether JSON gives the same value back."""
    if isinstance(value, (list, tuple)):
        return isinstance(value, list) and all(is_data(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_data(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)
