"""Vary what surrounds the graph: gradients, autocast, threads, options, dynamic shapes, backends."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch.fx import GraphModule

from torchrepro.edit.fixed_sizes import with_numbers
from torchrepro.edit.settings import compiler_settings, config_settings, state_settings
from torchrepro.execute.backends import LADDER, culprit_step, simpler_backends
from torchrepro.explain.input_parts import Names, tensor_inputs, with_inputs
from torchrepro.explain.sentences import listed
from torchrepro.explain.subject import Evidence, Outcome, Subject, Trial, verbed
from torchrepro.graph_text.annotations import NOTE_KEY, SymbolNote, TensorNote, note_of_value
from torchrepro.nouns.repro import Ambient, Autocast, Place, Repro, Symbol
from torchrepro.nouns.results import Area

_PARALLEL = 512
"""Elements below which inductor gives a loop to one thread whatever their number (`cpp.min_chunk_size`)."""


def backends(repro: Repro) -> Subject:
    """Each simpler backend: the first that fails tells the stage. None of them calls a C++ compiler."""
    own = repro.compiler.name

    def sentence(evidence: Evidence, trials: Sequence[Trial]) -> str:
        fails = {Outcome.FAILS: True, Outcome.PASSES: False}
        place = culprit_step([*(fails.get(trial.outcome) for trial in trials), True])
        passes = verbed(evidence.passing, "pass") if evidence.passing else ""
        if place is None or place == len(trials):
            return f"{own}'s own: the backend{'s' * (len(evidence.passing) > 1)} {passes}"
        first = next(step for step in LADDER if step.backend == trials[place].variation.label)
        words = f"comes in with {first.words}: the backend {first.backend} fails too"
        return f"{words}, {passes}" if passes else words

    subject = Subject(Area.BACKENDS, "backend", own, (), sentence, lambda evidence: "", matters=True)
    tried = simpler_backends(repro)
    return subject.having(
        [subject.varied(step.backend, changed, f"the backend {step.backend}") for step, changed in tried]
    )


def switches(repro: Repro, names: Names = None) -> list[Subject]:
    """Every setting that can be turned over, the most telling first."""
    return [
        *_gradients(repro, names),
        *_left_over(repro),
        *_vectors(repro),
        *_modes(repro),
        *_autocast(repro),
        *_threads(repro),
        *_dynamic_shapes(repro),
    ]


def _switch(
    area: Area,
    name: str,
    own: str,
    other: str,
    changed: Repro,
    *,
    edit: str = "",
    alike: str = "",
    matters: str = "",
) -> Subject:
    """A setting in its other position, and what to say if it does not matter and if it does."""
    alike = alike or f"{name} {own} and {other} alike"
    matters = matters or f"only with {name} {own}, not {other}"
    edit = edit or (f"compiled with {name} {other}" if area is Area.COMPILER else f"{name} {other}")
    subject = Subject(area, name, own, (), lambda evidence, trials: matters if evidence.passing else alike)
    return subject.having([subject.varied(other, changed, edit)])


def _gradients(repro: Repro, names: Names) -> Iterator[Subject]:
    """With gradients where there are none, without where there are."""
    ambient = repro.ambient
    if repro.place is not Place.AFTER_CAPTURE or not ambient.grad_enabled or ambient.inference_mode:
        return
    inputs = [given for given in tensor_inputs(repro, names) if given.tensor.is_floating_point()]
    wanting = [given for given in inputs if given.tensor.requires_grad]
    varied = wanting or inputs
    if not varied:
        return
    own, other = ("with", "without") if wanting else ("without", "with")
    who = listed([given.name for given in varied])
    verb = "requires" if len(wanting) == 1 else "require"
    changed = {given.index: given.tensor.detach().requires_grad_(not wanting) for given in varied}
    yield _switch(
        Area.GRADIENTS,
        "requires_grad",
        own,
        other,
        with_inputs(repro, changed),
        edit=f"{'no ' if wanting else ''}gradients for {who}",
        alike="with and without gradients alike",
        matters=f"only if {who} {verb} grad" if wanting else "only without gradients",
    )


def _left_over(repro: Repro) -> Iterator[Subject]:
    """Set back each setting that the search has left and that is not torch's default; most do matter."""
    for setting in (*state_settings(repro), *config_settings(repro)):
        if setting.name != "threads":
            yield _switch(Area.AMBIENT, setting.name, setting.own, setting.default, setting.removed(repro))
    for setting in compiler_settings(repro):
        if setting.name not in ("dynamic", "fullgraph"):
            yield _switch(Area.COMPILER, setting.name, setting.own, setting.default, setting.removed(repro))


def _vectors(repro: Repro) -> Iterator[Subject]:
    """Inductor without vector instructions on a CPU. Checked on torch 2.11 to 2.15 (`cpp.simdlen`)."""
    compiler = repro.compiler
    devices = {given.tensor.device.type for given in tensor_inputs(repro)}
    chosen = compiler.mode or "cpp.simdlen" in compiler.options
    if compiler.name == "inductor" and not chosen and devices == {"cpu"}:
        scalar = replace(compiler, options={**compiler.options, "cpp.simdlen": 1})
        yield _switch(
            Area.COMPILER,
            "vector instructions",
            "with",
            "without",
            replace(repro, compiler=scalar),
            edit='options={"cpp.simdlen": 1}, no vector instructions',
            alike="with and without vector instructions alike",
            matters='only with vector instructions: options={"cpp.simdlen": 1} passes',
        )


def _modes(repro: Repro) -> Iterator[Subject]:
    compiler = repro.compiler
    if compiler.name == "inductor" and not compiler.mode and not compiler.options:
        tuned = replace(repro, compiler=replace(compiler, mode="max-autotune"))
        yield _switch(Area.COMPILER, "mode", "default", "max-autotune", tuned)


def _autocast(repro: Repro) -> Iterator[Subject]:
    ambient = repro.ambient
    devices = {given.tensor.device.type for given in tensor_inputs(repro)}
    floating = any(given.tensor.dtype is torch.float32 for given in tensor_inputs(repro))
    if ambient.autocast:
        yield _ambient(repro, replace(ambient, autocast=()), "autocast", "on", "off")
    elif floating and len(devices) == 1 and repro.place is not Place.AFTER_AOT:
        cast = (Autocast(devices.pop(), "bfloat16"),)
        yield _ambient(repro, replace(ambient, autocast=cast), "autocast", "off", "on")


def _threads(repro: Repro) -> Iterator[Subject]:
    elements = sum(given.tensor.numel() for given in tensor_inputs(repro))
    available = os.cpu_count() or 1
    threads = min(repro.ambient.threads or torch.get_num_threads(), available)
    if elements < _PARALLEL or available < 2:
        return
    other = 1 if threads > 1 else available
    yield _ambient(repro, replace(repro.ambient, threads=other), "threads", str(threads), str(other))


def _ambient(repro: Repro, ambient: Ambient, name: str, own: str, other: str) -> Subject:
    return _switch(Area.AMBIENT, name, own, other, replace(repro, ambient=ambient))


def _dynamic_shapes(repro: Repro) -> Iterator[Subject]:
    """Static sizes where the repro has dynamic ones, and the other way round where it can have them."""
    if repro.symbols:
        own, other = "dynamic", "static"
        made: Repro | None = with_numbers(repro, {symbol.name for symbol in repro.symbols})
    else:
        own, other, made = "static", "dynamic", _with_symbols(repro)
    if made is not None:
        yield _switch(
            Area.COMPILER,
            "dynamic shapes",
            own,
            other,
            made,
            edit=f"{other} shapes",
            alike="dynamic and static shapes alike",
            matters=f"only with {own} shapes",
        )


def _with_symbols(repro: Repro) -> Repro | None:
    """Every size above 1 of every input as a symbol, equal sizes as one: what `dynamic=True` makes of them.

    As in a captured graph, the sizes are inputs of their own before all others. Without those, inductor does
    not fold `x * 0`, which hid the failure of softshrink on NaN. None where nothing would change, or where
    strides would have to become expressions as well.
    """
    if repro.place not in (Place.AFTER_CAPTURE, Place.AFTER_AOT) or repro.earlier:
        return None
    tensors = [value for value in repro.inputs if isinstance(value, torch.Tensor)]
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    if not sizes or not all(type(t) is torch.Tensor and t.is_contiguous() for t in tensors):
        return None
    symbols = {size: Symbol(f"s{number}", hint=size, lower=2) for number, size in enumerate(sizes)}
    graph = copy.deepcopy(repro.graph.graph)
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(placeholders[0]):
        for symbol in symbols.values():
            number = graph.placeholder(symbol.name)
            number.meta = {NOTE_KEY: SymbolNote("sym", symbol.name)}
    for node, value in zip(placeholders, repro.inputs, strict=False):
        note = note_of_value(value)
        if isinstance(note, TensorNote):
            shape = tuple(symbols[size].name if size in symbols else size for size in value.shape)
            node.meta = {NOTE_KEY: replace(note, shape=shape, stride=None)}
    module = GraphModule(repro.graph, graph, class_name="Graph")
    return replace(repro, graph=module, inputs=(*symbols, *repro.inputs), symbols=tuple(symbols.values()))
