"""Settings around a graph that are not torch's defaults, each with a way to do without it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.edit.cost import asks_for_gradients
from torchrepro.nouns.repro import Ambient, Compiler, Repro, shown_setting

_STATE = ("grad_enabled", "inference_mode", "default_dtype", "matmul_precision", "deterministic", "threads")
_GONE: Any = object()


@dataclass(frozen=True, eq=False)
class Setting:
    """One setting that a reader has to make."""

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
        Setting(f"autocast on {cast.device}", _at("ambient", "autocast", cast)) for cast in ambient.autocast
    ]
    found += config_settings(repro)
    found += [
        Setting(name, _at("ambient", "environ", name))
        for name, value in ambient.environ.items()
        # Torch has read the variables that this process was started with: no candidate would be without them.
        if os.environ.get(name) != value
    ]
    if ambient.rng:
        found.append(Setting("rng", _at_ambient("rng", {})))
    if repro.strict:
        found.append(Setting("strict", _at("strict", value=False)))
    if repro.tolerance is not None:
        found.append(Setting("tolerance", _at("tolerance", value=None)))
    return found


def state_settings(repro: Repro) -> list[Setting]:
    """Return the modes and the process-wide settings of torch."""
    ambient, plain = repro.ambient, Ambient()
    return [
        Setting(name, _at_ambient(name, value), str(getattr(ambient, name)), str(value))
        for name in _STATE
        if (value := getattr(plain, name)) != getattr(ambient, name)
    ]


def config_settings(repro: Repro) -> list[Setting]:
    """Return the settings of Dynamo, AOT and inductor, and what the user has registered for operators."""
    ambient = repro.ambient
    held = [("configs", ambient.configs), ("registered", ambient.registered)]
    return [
        Setting(f"{table}.{name}", _at("ambient", field, table, name), str(shown_setting(value)))
        for field, tables in held
        for table, values in tables.items()
        for name, value in values.items()
    ]


def gradient_settings(repro: Repro) -> list[Setting]:
    """Return the backward call, and inputs that require gradients."""
    if not asks_for_gradients(repro):
        return []
    return [Setting("backward", _at("backward", value=False)), Setting("requires_grad", _without_gradients)]


def compiler_settings(repro: Repro) -> list[Setting]:
    """Return the arguments of `torch.compile` but for the backend: that is under test."""
    compiler, plain = repro.compiler, Compiler()
    found = [
        Setting(name, _at("compiler", name, value=value), str(getattr(compiler, name)))
        for name in ("mode", "dynamic", "fullgraph")
        if (value := getattr(plain, name)) != getattr(compiler, name)
    ]
    return found + [
        Setting(name, _at("compiler", "options", name), str(shown_setting(value)))
        for name, value in compiler.options.items()
    ]


def call_settings(repro: Repro) -> list[Setting]:
    """Return the calls that came before."""
    return [Setting(f"call {n}", _at("earlier", inputs)) for n, inputs in enumerate(repro.earlier)]


def _at(*path: Any, value: Any = _GONE) -> Callable[[Repro], Repro]:
    """Set a value at a path of fields, keys and items in a repro, or remove what is there."""
    return lambda repro: _with(repro, path, value)


def _at_ambient(name: str, value: Any) -> Callable[[Repro], Repro]:
    # Settings that could not be recorded (`left_out`) are not applied, so the failure does not need them.
    return lambda repro: _with(_with(repro, ("ambient", "left_out"), ()), ("ambient", name), value)


def _with(held: Any, path: Sequence[Any], value: Any) -> Any:
    if not path:
        return value
    step, *rest = path
    if isinstance(held, tuple):
        return tuple(item for item in held if item is not step)
    if isinstance(held, Mapping):
        inner = _with(held.get(step, {}), rest, value)
        others = {key: other for key, other in held.items() if key != step}
        return others if inner is _GONE or inner == {} else {**others, step: inner}
    return replace(held, **{step: _with(getattr(held, step), rest, value)})


def _without_gradients(repro: Repro) -> Repro:
    """Return the repro with detached inputs on the same memory, and so without a backward call."""

    def detached(inputs: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(v.detach() if isinstance(v, torch.Tensor) and v.requires_grad else v for v in inputs)

    earlier = tuple(map(detached, repro.earlier))
    return replace(repro, inputs=detached(repro.inputs), earlier=earlier, backward=None)
