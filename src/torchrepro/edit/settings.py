"""Settings around a graph that are not torch's defaults, each with a way to do without it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.edit.cost import asks_for_gradients
from torchrepro.nouns.repro import Ambient, Compiler, Repro

_STATE = ("grad_enabled", "inference_mode", "default_dtype", "matmul_precision", "deterministic", "threads")


@dataclass(frozen=True, eq=False)
class Setting:
    """One thing that a reader has to set up."""

    name: str
    removed: Callable[[Repro], Repro]
    """The repro without it."""
    own: str = ""
    """Its value, and below the one that it has when it is removed."""
    default: str = "default"


def without(repro: Repro, settings: Sequence[Setting]) -> Repro:
    """Return the repro without any of these."""
    for setting in settings:
        repro = setting.removed(repro)
    return repro


def ambient_settings(repro: Repro) -> list[Setting]:
    """Return the state around the call, and how the call was judged."""
    ambient = repro.ambient
    found = state_settings(repro)
    found += [
        _ambient(f"autocast on {cast.device}", _without_item("autocast", cast)) for cast in ambient.autocast
    ]
    found += config_settings(repro)
    found += [
        _ambient(name, _without_key("environ", name))
        for name in ambient.environ
        if not _is_set(name, ambient)
    ]
    found += [_ambient("rng", _with(left_out=(), rng={}))] if ambient.rng else []
    found += [Setting("strict", lambda repro: replace(repro, strict=False))] if repro.strict else []
    if repro.tolerance is not None:
        found.append(Setting("tolerance", lambda repro: replace(repro, tolerance=None)))
    return found


def state_settings(repro: Repro) -> list[Setting]:
    """Return the modes and the process-wide settings of torch."""
    ambient, plain = repro.ambient, Ambient()
    return [
        # What could not be kept is not applied either, so the failure does not need it.
        _ambient(name, _with(left_out=(), **{name: value}), str(getattr(ambient, name)), str(value))
        for name in _STATE
        if (value := getattr(plain, name)) != getattr(ambient, name)
    ]


def config_settings(repro: Repro) -> list[Setting]:
    """Return the settings of Dynamo, AOT and inductor."""

    def removed(module: str, name: str) -> _Change:
        def change(held: Any) -> dict[str, Any]:
            configs = {**held.configs, module: _less(held.configs[module], name)}
            return {"configs": {short: values for short, values in configs.items() if values}}

        return change

    return [
        _ambient(f"{module}.{name}", removed(module, name), str(value))
        for module, values in repro.ambient.configs.items()
        for name, value in values.items()
    ]


def gradient_settings(repro: Repro) -> list[Setting]:
    """Return the backward call, and inputs that ask for gradients."""
    if not asks_for_gradients(repro):
        return []
    backward = Setting("backward", lambda repro: replace(repro, backward=False))
    return [backward, Setting("requires_grad", _without_gradients)]


def compiler_settings(repro: Repro) -> list[Setting]:
    """Return what was asked of the compiler. Its name stays: it is what is under test."""
    compiler, plain = repro.compiler, Compiler()
    found = [
        _compiler(name, _with(**{name: value}), str(getattr(compiler, name)))
        for name in ("mode", "dynamic", "fullgraph")
        if (value := getattr(plain, name)) != getattr(compiler, name)
    ]
    return found + [
        _compiler(name, _without_key("options", name), str(value)) for name, value in compiler.options.items()
    ]


def call_settings(repro: Repro) -> list[Setting]:
    """Return the calls that came before."""

    def without_call(inputs: tuple[Any, ...]) -> Callable[[Repro], Repro]:
        return lambda repro: replace(
            repro, earlier=tuple(call for call in repro.earlier if call is not inputs)
        )

    return [Setting(f"call {number}", without_call(inputs)) for number, inputs in enumerate(repro.earlier)]


_Change = Callable[[Any], Mapping[str, Any]]
"""From an `Ambient` or a `Compiler` to the fields that are different without a setting."""


def _ambient(name: str, change: _Change, own: str = "", default: str = "default") -> Setting:
    def removed(repro: Repro) -> Repro:
        return replace(repro, ambient=replace(repro.ambient, **change(repro.ambient)))

    return Setting(name, removed, own, default)


def _compiler(name: str, change: _Change, own: str) -> Setting:
    def removed(repro: Repro) -> Repro:
        return replace(repro, compiler=replace(repro.compiler, **change(repro.compiler)))

    return Setting(name, removed, own)


def _with(**values: Any) -> _Change:
    return lambda held: values


def _without_item(field: str, item: object) -> _Change:
    return lambda held: {field: tuple(other for other in getattr(held, field) if other != item)}


def _without_key(field: str, name: str) -> _Change:
    return lambda held: {field: _less(getattr(held, field), name)}


def _less(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _is_set(name: str, ambient: Ambient) -> bool:
    """Torch has read the variables that this process was started with: no candidate would be without them."""
    return os.environ.get(name) == ambient.environ[name]


def _without_gradients(repro: Repro) -> Repro:
    """Inputs on the same memory that ask for no gradients; there is no backward then."""
    calls = [tuple(map(_detached, inputs)) for inputs in (repro.inputs, *repro.earlier)]
    return replace(repro, inputs=calls[0], earlier=tuple(calls[1:]), backward=None)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value
