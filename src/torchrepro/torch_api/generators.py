"""The random generators that a computation may draw from: capture and restore their states."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from torchrepro.nouns.errors import message_of


@dataclass(frozen=True, eq=False)
class RngState:
    """The state of every generator that a computation could draw from."""

    devices: Mapping[str, torch.Tensor]
    """States of torch's default generators: `cpu`, `cuda:0`, ..."""
    python: Any
    numpy: Any
    generators: tuple[tuple[torch.Generator, torch.Tensor], ...] = ()

    def starting_from(self, devices: Mapping[str, torch.Tensor]) -> RngState:
        """Return this state with the given states of torch's generators in place of its own."""
        return replace(self, devices={**self.devices, **devices})


def accelerators() -> tuple[str, ...]:
    """Return the kinds of device that this machine has in addition to the CPU (`cuda`, `xpu`, `mps`)."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return () if found is None else (found.type,)


def is_initialised(kind: str) -> bool:
    """Return whether a kind of device is in use; other queries would create its context."""
    asked = getattr(torch.get_device_module(kind), "is_initialized", None)
    return asked is None or bool(asked())


def capture_rng_state(*generators: torch.Generator) -> RngState:
    """Return the state of the global generators (torch's, Python's and NumPy's) and of these."""
    numpy = sys.modules.get("numpy")
    return RngState(
        devices=device_rng_states(),
        python=random.getstate(),
        numpy=None if numpy is None else numpy.random.get_state(),
        generators=tuple((generator, generator.get_state()) for generator in generators),
    )


def device_rng_states() -> dict[str, torch.Tensor]:
    """Return the states of torch's default generators on the CPU and on all devices in use.

    A device that is not initialised is skipped, because a query would create its context.
    """
    devices = {"cpu": torch.get_rng_state()}
    for kind in accelerators():
        if kind == "mps":
            devices["mps:0"] = torch.mps.get_rng_state()
        elif is_initialised(kind):
            module = torch.get_device_module(kind)
            devices.update({f"{kind}:{i}": module.get_rng_state(i) for i in range(module.device_count())})
    return devices


def same_states(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the states of torch's generators are equal on the devices that both have."""
    return all(torch.equal(state, second[device]) for device, state in first.items() if device in second)


def quick_rng_state() -> dict[str, torch.Tensor]:
    """Return the states of the default generators of CPU and current device, in a few microseconds."""
    states = {"cpu": torch.default_generator.get_state()}
    for kind, module in _modules_at_start():
        if module.is_initialized() and not (kind == "cuda" and module.is_current_stream_capturing()):
            index = module.current_device()
            states[f"{kind}:{index}"] = module.default_generators[index].get_state()
    return states


def is_capturing() -> bool:
    """Return whether CUDA records a graph: then generator states and synchronisation are forbidden."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@cache
def _modules_at_start() -> tuple[tuple[str, Any], ...]:
    """Return the accelerators that have default generators, with their modules."""
    modules = ((kind, torch.get_device_module(kind)) for kind in accelerators())
    return tuple((kind, module) for kind, module in modules if hasattr(module, "default_generators"))


def is_device_fault(exc: BaseException) -> bool:
    """Return whether a kernel's fault has made the device unusable for this process."""
    return isinstance(exc, torch.AcceleratorError) or "CUDA error" in message_of(exc)


def restore_rng_state(state: RngState) -> None:
    """Restore the state of every generator; a device that is missing or has failed is skipped."""
    for device, value in state.devices.items():
        try:
            _restore_device(device, value)
        except RuntimeError as exc:
            if not is_device_fault(exc):
                raise
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy"].random.set_state(state.numpy)
    for generator, value in state.generators:
        generator.set_state(value)


def _restore_device(device: str, value: torch.Tensor) -> None:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        torch.set_rng_state(value)
    elif kind not in accelerators():
        return
    elif kind == "mps":
        torch.mps.set_rng_state(value)
    elif int(index or 0) < torch.get_device_module(kind).device_count():
        torch.get_device_module(kind).set_rng_state(value, int(index or 0))


@contextmanager
def same_randomness(state: RngState) -> Iterator[None]:
    """Set the generators to `state` for the body; afterwards restore their former states."""
    outside = capture_rng_state(*(generator for generator, _ in state.generators))
    restore_rng_state(state)
    try:
        yield
    finally:
        restore_rng_state(outside)
