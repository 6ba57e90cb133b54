"""Ambient: the state around a computation that changes what it computes or how it is compiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torchrepro.generators import accelerators, capture_rng_state

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

_CONFIG_MODULES = {
    "dynamo": "torch._dynamo.config",
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
}
# Set by every judging process for itself (`isolate/compiler_environment.py`): no part of the user's state.
_SET_BY_THE_JUDGE = frozenset(
    {"inductor.fx_graph_cache", "inductor.compile_threads", "functorch.enable_autograd_cache"}
)


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

    @classmethod
    def capture(cls) -> Ambient:
        """The state of this process and thread, now."""
        import torch

        configs, left_out = _non_default_configs()
        return cls(
            grad_enabled=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            autocast=_current_autocast(),
            default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=("off", "warn", "error")[torch.get_deterministic_debug_mode()],
            threads=torch.get_num_threads(),
            configs=configs,
            left_out=left_out,
            environ=telling_environment(),
            rng=capture_rng_state().devices,
        )

    @contextmanager
    def settings(self) -> Iterator[None]:
        """The process-wide part: default dtype, precision, determinism, threads, the compilers' configs."""
        with ExitStack() as stack:
            for get, set_, value in self._settings():
                stack.callback(set_, get())
                set_(value)
            for name, values in self.configs.items():
                stack.enter_context(_patched(_config_module(name), dict(values)))
            yield

    @contextmanager
    def modes(self) -> Iterator[None]:
        """The part that belongs to the forward call alone: grad mode, inference mode, autocast.

        Backward runs outside of it, as users do: under autocast it computes something else.
        """
        import torch

        with ExitStack() as stack:
            # Inside inference mode grad mode is off whatever it says, so it goes first.
            stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for cast in self.autocast:
                stack.enter_context(
                    torch.autocast(
                        cast.device,
                        dtype=getattr(torch, cast.dtype),
                        enabled=cast.enabled,
                        cache_enabled=cast.cache_enabled,
                    )
                )
            yield

    @contextmanager
    def applied(self) -> Iterator[None]:
        """All of it around the body, the former state after it; the generators are left alone."""
        with self.settings(), self.modes():
            yield

    def _settings(self) -> list[tuple[Callable[[], Any], Callable[[Any], Any], Any]]:
        """(getter, setter, value) of the process-wide settings."""
        import torch

        settings: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = [
            (torch.get_default_dtype, torch.set_default_dtype, getattr(torch, self.default_dtype)),
            (
                torch.get_float32_matmul_precision,
                torch.set_float32_matmul_precision,
                self.matmul_precision,
            ),
            (
                torch.get_deterministic_debug_mode,
                torch.set_deterministic_debug_mode,
                ("off", "warn", "error").index(self.deterministic),
            ),
        ]
        if self.threads is not None:
            # More threads than cores only slow the replay down; fewer can change the result.
            threads = min(self.threads, os.cpu_count() or 1)
            settings.append((torch.get_num_threads, torch.set_num_threads, threads))
        return settings

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
    """The environment variables that change what is compiled; never one that could hold a secret."""
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _TELLING_NAMES or name.startswith(_TELLING_PREFIXES))
        and not any(word in name for word in _SECRET_WORDS)
        and not name.endswith(("_DIR", "_PATH", "_FILE"))
    }


def _current_autocast() -> tuple[Autocast, ...]:
    import torch

    found = []
    for device in ("cpu", *accelerators()):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            found.append(Autocast(device, dtype, True, torch.is_autocast_cache_enabled()))
    return tuple(found)


def _non_default_configs() -> tuple[Mapping[str, Mapping[str, Any]], tuple[str, ...]]:
    configs: dict[str, Mapping[str, Any]] = {}
    left_out: list[str] = []
    for short in _CONFIG_MODULES:
        kept = {}
        for name, value in _changed_values(_config_module(short)).items():
            if f"{short}.{name}" in _SET_BY_THE_JUDGE:
                continue
            if is_data(value):
                kept[name] = value
            else:
                left_out.append(f"{short}.{name}")
        if kept:
            configs[short] = kept
    return configs, tuple(left_out)


def is_data(value: object) -> bool:
    """Whether JSON gives the same value back."""
    if isinstance(value, (list, tuple)):
        return isinstance(value, list) and all(is_data(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_data(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _config_module(short: str) -> ModuleType:
    from importlib import import_module

    return import_module(_CONFIG_MODULES[short])


def _changed_values(module: Any) -> dict[str, Any]:
    """Config values that the user has set to something else than torch would.

    Torch sets some configs to their defaults while it starts, which `_is_default` takes for a choice.
    Checked on torch 2.11 to 2.15 (`get_config_copy`, `_is_default`, `_config`).
    """
    return {
        name: value
        for name, value in module.get_config_copy().items()
        if not module._is_default(name) and value != module._config[name].default
    }


@contextmanager
def _patched(module: Any, values: dict[str, Any]) -> Iterator[None]:
    """Config values set for a while; names that this version of torch does not have are passed over.

    Checked on torch 2.11 to 2.15 (`patch`).
    """
    known = module.get_config_copy()
    with module.patch({name: value for name, value in values.items() if name in known}):
        yield
