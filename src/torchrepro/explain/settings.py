"""Settings: whether gradients, autocast, threads, or the compiler's own switches matter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from torchrepro.edit.settings import Setting, compiler_settings, config_settings, state_settings
from torchrepro.explain.inputs import tensor_inputs, with_inputs
from torchrepro.explain.sentences import Evidence, listed
from torchrepro.explain.variations import Trial, Variation
from torchrepro.nouns.ambient import Ambient, Autocast
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Place, Repro

_PARALLEL = 512
"""Elements below which inductor gives a loop to one thread whatever their number (`cpp.min_chunk_size`)."""


@dataclass(frozen=True, eq=False)
class Switch:
    """A setting in its other position, and what to say if it does not matter and if it does."""

    variation: Variation
    own: str
    alike: str
    matters: str

    def fact(self, trials: Sequence[Trial]) -> Fact | None:
        """What was found out; None if the switch could not be tried."""
        ours = [trial for trial in trials if trial.variation is self.variation]
        evidence = Evidence.of(ours, own=self.own)
        if evidence.tried < 2:
            return None
        sentence = self.matters if evidence.passing else self.alike
        return evidence.fact(self.variation.area, self.variation.subject, sentence, self.variation.subject)


def switches(repro: Repro, names: Mapping[int, str] | None = None) -> list[Switch]:
    """Every setting that can be turned over, the most telling first."""
    return [
        *_gradients(repro, names),
        *_left_over(repro),
        *_vectors(repro),
        *_modes(repro),
        *_autocast(repro),
        *_threads(repro),
    ]


def _gradients(repro: Repro, names: Mapping[int, str] | None) -> Iterator[Switch]:
    """With gradients where there are none, without where there are."""
    ambient = repro.ambient
    if repro.place is not Place.AFTER_CAPTURE or not ambient.grad_enabled or ambient.inference_mode:
        return
    inputs = [given for given in tensor_inputs(repro, names) if given.tensor.is_floating_point()]
    wanting = [given for given in inputs if given.tensor.requires_grad]
    if wanting:
        changed = {given.index: given.tensor.detach() for given in wanting}
        who = listed([given.name for given in wanting])
        verb = "requires" if len(wanting) == 1 else "require"
        variation = Variation(
            Area.GRADIENTS, "requires_grad", "without", with_inputs(repro, changed), f"no gradients for {who}"
        )
        yield Switch(variation, "with", "with and without gradients alike", f"only if {who} {verb} grad")
    elif inputs:
        changed = {given.index: given.tensor.detach().requires_grad_() for given in inputs}
        who = listed([given.name for given in inputs])
        variation = Variation(
            Area.GRADIENTS, "requires_grad", "with", with_inputs(repro, changed), f"gradients for {who}"
        )
        yield Switch(variation, "without", "with and without gradients alike", "only without gradients")


def _left_over(repro: Repro) -> Iterator[Switch]:
    """Set back each setting that the search has left and that is not torch's default; most do matter."""
    for setting in (*state_settings(repro), *config_settings(repro)):
        if setting.name != "threads":
            yield _set_back(repro, Area.AMBIENT, setting)
    for setting in compiler_settings(repro):
        if setting.name not in ("dynamic", "fullgraph"):
            yield _set_back(repro, Area.COMPILER, setting)


def _set_back(repro: Repro, area: Area, setting: Setting) -> Switch:
    return _switch(area, setting.name, setting.own, setting.default, setting.removed(repro))


def _vectors(repro: Repro) -> Iterator[Switch]:
    """Inductor without vector instructions on a CPU. Checked on torch 2.11 to 2.15 (`cpp.simdlen`)."""
    compiler = repro.compiler
    devices = {given.tensor.device.type for given in tensor_inputs(repro)}
    if (
        compiler.name != "inductor"
        or compiler.mode
        or "cpp.simdlen" in compiler.options
        or devices != {"cpu"}
    ):
        return
    scalar = replace(compiler, options={**compiler.options, "cpp.simdlen": 1})
    variation = Variation(
        Area.COMPILER,
        "vector instructions",
        "without",
        replace(repro, compiler=scalar),
        'options={"cpp.simdlen": 1}, no vector instructions',
    )
    matters = 'only with vector instructions: options={"cpp.simdlen": 1} passes'
    yield Switch(variation, "with", "with and without vector instructions alike", matters)


def _modes(repro: Repro) -> Iterator[Switch]:
    compiler = repro.compiler
    if compiler.name == "inductor" and not compiler.mode and not compiler.options:
        tuned = replace(repro, compiler=replace(compiler, mode="max-autotune"))
        yield _switch(Area.COMPILER, "mode", "default", "max-autotune", tuned)


def _autocast(repro: Repro) -> Iterator[Switch]:
    ambient = repro.ambient
    devices = {given.tensor.device.type for given in tensor_inputs(repro)}
    floating = any(given.tensor.dtype is torch.float32 for given in tensor_inputs(repro))
    if ambient.autocast:
        yield _ambient(repro, replace(ambient, autocast=()), "autocast", "on", "off")
    elif floating and len(devices) == 1 and repro.place is not Place.AFTER_AOT:
        cast = (Autocast(devices.pop(), "bfloat16"),)
        yield _ambient(repro, replace(ambient, autocast=cast), "autocast", "off", "on")


def _threads(repro: Repro) -> Iterator[Switch]:
    elements = sum(given.tensor.numel() for given in tensor_inputs(repro))
    available = os.cpu_count() or 1
    threads = min(repro.ambient.threads or torch.get_num_threads(), available)
    if elements < _PARALLEL or available < 2:
        return
    other = 1 if threads > 1 else available
    yield _ambient(repro, replace(repro.ambient, threads=other), "threads", str(threads), str(other))


def _ambient(repro: Repro, ambient: Ambient, name: str, own: str, other: str) -> Switch:
    return _switch(Area.AMBIENT, name, own, other, replace(repro, ambient=ambient))


def _switch(area: Area, name: str, own: str, other: str, changed: Repro) -> Switch:
    words = f"compiled with {name} {other}" if area is Area.COMPILER else f"{name} {other}"
    variation = Variation(area, name, other, changed, words)
    return Switch(variation, own, f"{name} {own} and {other} alike", f"only with {name} {own}, not {other}")
