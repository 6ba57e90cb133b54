"""Capture the ambient state of this process, and apply a recorded one around a computation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from torchrepro.nouns.repro import Ambient, Autocast, Registered, telling_environment
from torchrepro.torch_api.configs import CONFIG_MODULES, changed_config, patched_config, reset_config
from torchrepro.torch_api.generators import accelerators, capture_rng_state
from torchrepro.torch_api.operator_tables import TABLES, registered_as, registered_in
from torchrepro.user_code.closure import is_installed_module

# Set by every judging process for itself (`engine/processes/fresh_process.py`): not part of the user's state.
_SET_BY_THE_JUDGE = frozenset(
    {"inductor.fx_graph_cache", "inductor.compile_threads", "functorch.enable_autograd_cache"}
)
_DETERMINISTIC = ("off", "warn", "error")


def capture_ambient() -> Ambient:
    """Return the current state of this process and thread."""
    return Ambient(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=_current_autocast(),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        matmul_precision=torch.get_float32_matmul_precision(),
        deterministic=_DETERMINISTIC[torch.get_deterministic_debug_mode()],
        threads=torch.get_num_threads(),
        configs=_non_default_configs(),
        registered=_registered_by_the_user(),
        environ=telling_environment(),
        rng=capture_rng_state().devices,
    )


@contextmanager
def applied_settings(ambient: Ambient) -> Iterator[None]:
    """Apply the process-wide part: default dtype, precision, determinism, threads, the compilers' configs."""
    # More threads than cores only slow the replay down; fewer can change the result.
    threads = None if ambient.threads is None else min(ambient.threads, os.cpu_count() or 1)
    settings: tuple[tuple[Callable[[], Any], Callable[[Any], Any], Any], ...] = (
        (torch.get_default_dtype, torch.set_default_dtype, getattr(torch, ambient.default_dtype)),
        (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            ambient.matmul_precision,
        ),
        (
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            _DETERMINISTIC.index(ambient.deterministic),
        ),
        (torch.get_num_threads, torch.set_num_threads, threads),
    )
    with ExitStack() as stack:
        for get, set_, value in settings:
            if value is not None:
                stack.callback(set_, get())
                set_(value)
        for name, values in ambient.configs.items():
            stack.enter_context(patched_config(name, dict(values)))
        for table, entries in ambient.registered.items():
            for operator, entry in entries.items():
                stack.enter_context(registered_as(table, operator, entry))
        yield


@contextmanager
def applied_modes(ambient: Ambient) -> Iterator[None]:
    """Apply the part that belongs to the forward call alone: grad mode, inference mode, autocast.

    Backward runs outside of it, as users run it: under autocast it computes something else.
    """
    with ExitStack() as stack:
        # Inference mode turns grad mode off regardless of its setting, so grad mode goes first.
        stack.enter_context(torch.inference_mode(ambient.inference_mode))
        stack.enter_context(torch.set_grad_enabled(ambient.grad_enabled))
        for cast in ambient.autocast:
            stack.enter_context(
                torch.autocast(
                    cast.device,
                    dtype=getattr(torch, cast.dtype),
                    enabled=cast.enabled,
                    cache_enabled=cast.cache_enabled,
                )
            )
        yield


def _current_autocast() -> tuple[Autocast, ...]:
    found = []
    for device in ("cpu", *accelerators()):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            found.append(Autocast(device, dtype, True, torch.is_autocast_cache_enabled()))
    return tuple(found)


def _non_default_configs() -> dict[str, Mapping[str, Any]]:
    configs: dict[str, Mapping[str, Any]] = {}
    for short in CONFIG_MODULES:
        changed = changed_config(short)
        kept = {name: value for name, value in changed.items() if f"{short}.{name}" not in _SET_BY_THE_JUDGE}
        if kept:
            configs[short] = kept
    return configs


def reset_configs(keep: Collection[str] = ()) -> None:
    """Give the compilers' settings torch's own values, as in a fresh process, but for those to `keep`.

    A repro brings its own settings along, and one that lacks a setting must not find it here.
    """
    for short, values in _non_default_configs().items():
        for name in values:
            if f"{short}.{name}" not in keep:
                reset_config(short, name)


def has_registered_code() -> bool:
    """Return whether the user has registered lowerings or decompositions in this process."""
    return bool(_registered_by_the_user())


def _registered_by_the_user() -> dict[str, dict[str, Registered]]:
    """Return lowerings and decompositions that come neither from torch nor with the operators of a package.

    A package registers what belongs to its own operators when it is imported, which a replay does.
    """

    def is_users(operator: str, registered: Registered) -> bool:
        home = getattr(registered.function, "__module__", None) or "__main__"
        if home.partition(".")[0] in ("torch", "torchrepro"):
            return False
        return operator.startswith(("aten.", "prims.")) or not is_installed_module(home)

    found = {
        table: {name: entry for name, entry in registered_in(table).items() if is_users(name, entry)}
        for table in TABLES
    }
    return {table: entries for table, entries in found.items() if entries}
