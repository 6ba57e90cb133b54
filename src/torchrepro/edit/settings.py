"""Surroundings: what stands around a graph and is not torch's default, each with a way to do without it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.edit.cost import asks_for_gradients
from torchrepro.nouns.ambient import Ambient, Autocast
from torchrepro.nouns.repro import Compiler, Repro

_STATE = ("grad_enabled", "inference_mode", "default_dtype", "matmul_precision", "deterministic", "threads")


@dataclass(frozen=True, eq=False)
class Setting:
    """One thing that a reader has to set up."""

    name: str
    removed: Callable[[Repro], Repro]
    """The repro without it."""


def without(repro: Repro, settings: Sequence[Setting]) -> Repro:
    """The repro without any of these."""
    for setting in settings:
        repro = setting.removed(repro)
    return repro


def ambient_settings(repro: Repro) -> list[Setting]:
    """The state around the call, and how the call was judged."""
    ambient, plain = repro.ambient, Ambient()
    found = [
        _ambient(name, **{name: getattr(plain, name)})
        for name in _STATE
        if getattr(ambient, name) != getattr(plain, name)
    ]
    found += [_without_autocast(cast) for cast in ambient.autocast]
    found += [_without_config(module, name) for module, held in ambient.configs.items() for name in held]
    found += [_without_variable(name) for name in ambient.environ if not _is_set_here(name, ambient)]
    found += [_ambient("rng", rng={})] if ambient.rng else []
    found += [Setting("strict", lambda repro: replace(repro, strict=False))] if repro.strict else []
    if repro.tolerance is not None:
        found.append(Setting("tolerance", lambda repro: replace(repro, tolerance=None)))
    return found


def gradient_settings(repro: Repro) -> list[Setting]:
    """The backward call, and inputs that ask for gradients."""
    if not asks_for_gradients(repro):
        return []
    backward = Setting("backward", lambda repro: replace(repro, backward=False))
    return [backward, Setting("requires_grad", _without_gradients)]


def compiler_settings(repro: Repro) -> list[Setting]:
    """What was asked of the compiler. Its name stays: it is what is under test."""
    compiler, plain = repro.compiler, Compiler()
    found = [
        _compiler(name, **{name: getattr(plain, name)})
        for name in ("mode", "dynamic", "fullgraph")
        if getattr(compiler, name) != getattr(plain, name)
    ]
    return found + [_without_option(name) for name in compiler.options]


def call_settings(repro: Repro) -> list[Setting]:
    """The calls that came before."""
    return [_without_call(inputs, number) for number, inputs in enumerate(repro.earlier)]


def _ambient(setting: str, **values: Any) -> Setting:
    # What could not be kept is not applied either, so the failure does not need it.
    return Setting(
        setting, lambda repro: replace(repro, ambient=replace(repro.ambient, left_out=(), **values))
    )


def _without_autocast(cast: Autocast) -> Setting:
    def removed(repro: Repro) -> Repro:
        others = tuple(other for other in repro.ambient.autocast if other != cast)
        return replace(repro, ambient=replace(repro.ambient, autocast=others))

    return Setting(f"autocast on {cast.device}", removed)


def _without_config(module: str, name: str) -> Setting:
    def removed(repro: Repro) -> Repro:
        configs = dict(repro.ambient.configs)
        configs[module] = _less(configs[module], name)
        configs = {short: values for short, values in configs.items() if values}
        return replace(repro, ambient=replace(repro.ambient, configs=configs))

    return Setting(f"{module}.{name}", removed)


def _is_set_here(name: str, ambient: Ambient) -> bool:
    """Torch has read the variables that this process was started with: no candidate would be without them."""
    return os.environ.get(name) == ambient.environ[name]


def _without_variable(name: str) -> Setting:
    def removed(repro: Repro) -> Repro:
        return replace(repro, ambient=replace(repro.ambient, environ=_less(repro.ambient.environ, name)))

    return Setting(name, removed)


def _without_gradients(repro: Repro) -> Repro:
    """Inputs on the same memory that ask for no gradients; there is no backward then."""
    calls = [tuple(map(_detached, inputs)) for inputs in (repro.inputs, *repro.earlier)]
    return replace(repro, inputs=calls[0], earlier=tuple(calls[1:]), backward=None)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def _compiler(setting: str, **values: Any) -> Setting:
    return Setting(setting, lambda repro: replace(repro, compiler=replace(repro.compiler, **values)))


def _without_option(name: str) -> Setting:
    def removed(repro: Repro) -> Repro:
        options = _less(repro.compiler.options, name)
        return replace(repro, compiler=replace(repro.compiler, options=options))

    return Setting(f"option {name}", removed)


def _without_call(inputs: tuple[Any, ...], number: int) -> Setting:
    def removed(repro: Repro) -> Repro:
        return replace(repro, earlier=tuple(call for call in repro.earlier if call is not inputs))

    return Setting(f"call {number}", removed)


def _less(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
