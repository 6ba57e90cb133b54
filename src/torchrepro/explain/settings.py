"""Vary the settings around a graph: backends, gradients, autocast, threads, options, dynamic shapes."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchrepro.edit.held_tensors import with_tensors
from torchrepro.edit.settings import compiler_settings, config_settings, state_settings
from torchrepro.edit.symbolic_sizes import with_numbers
from torchrepro.execute.backends import LADDER, culprit_step, simpler_backends
from torchrepro.explain.input_parts import Names, tensor_inputs
from torchrepro.explain.rules import listed
from torchrepro.explain.subject import Evidence, Outcome, Subject, switch, verbed
from torchrepro.graph_text.annotations import NOTE_KEY, SymbolNote, TensorNote, note_of_value
from torchrepro.nouns.repro import Autocast, Place, Repro, Symbol
from torchrepro.nouns.results import Area

_PARALLEL = 512
"""With fewer elements, inductor runs a loop on one thread in any case (`cpp.min_chunk_size`)."""


def backends(repro: Repro) -> Subject:
    """Return the backend as a subject: the first simpler one that fails is the stage. None compiles C++."""
    own = repro.compiler.name

    def sentence(evidence: Evidence) -> str:
        fails = {Outcome.FAILS: True, Outcome.PASSES: False}
        place = culprit_step([*(fails.get(trial.outcome) for trial in evidence.trials), True])
        passes = verbed(evidence.passing, "pass") if evidence.passing else ""
        if place is None or place == len(evidence.trials):
            return f"{own}'s own: the backend{'s' * (len(evidence.passing) > 1)} {passes}"
        first = next(step for step in LADDER if step.backend == evidence.trials[place].variation.label)
        words = f"comes in with {first.words}: the backend {first.backend} fails too"
        return f"{words}, {passes}" if passes else words

    subject = Subject(Area.BACKENDS, "backend", own, sentence, lambda evidence: "", matters=True)
    for step, changed in simpler_backends(repro):
        subject.add(step.backend, changed, f"the backend {step.backend}")
    return subject


def switches(repro: Repro, names: Names) -> Iterator[Subject]:
    """Yield every setting that has an alternative, the most informative first."""
    ambient, compiler = repro.ambient, repro.compiler
    tensors = [held.tensor for held in tensor_inputs(repro).values()]
    devices, types = {tensor.device.type for tensor in tensors}, {tensor.dtype for tensor in tensors}

    def with_ambient(name: str, own: str, other: str, **changed: Any) -> Subject:
        return switch(Area.AMBIENT, name, own, other, replace(repro, ambient=replace(ambient, **changed)))

    yield from _gradients(repro, names)
    # Settings other than torch's defaults that the search has kept: most of them matter.
    for setting in (*state_settings(repro), *config_settings(repro)):
        if setting.name != "threads":
            yield switch(Area.AMBIENT, setting.name, setting.own, setting.default, setting.removed(repro))
    for setting in compiler_settings(repro):
        if setting.name not in ("dynamic", "fullgraph"):
            yield switch(Area.COMPILER, setting.name, setting.own, setting.default, setting.removed(repro))
    inductor = compiler.name == "inductor" and not compiler.mode
    if inductor and "cpp.simdlen" not in compiler.options and devices == {"cpu"}:
        # Checked on torch 2.11 to 2.15 (`cpp.simdlen`).
        scalar = replace(compiler, options={**compiler.options, "cpp.simdlen": 1})
        yield switch(
            Area.COMPILER,
            "vector instructions",
            "with",
            "without",
            replace(repro, compiler=scalar),
            edit='options={"cpp.simdlen": 1}, no vector instructions',
            alike="with and without vector instructions alike",
            matters='only with vector instructions: options={"cpp.simdlen": 1} passes',
        )
    if inductor and not compiler.options:
        tuned = replace(repro, compiler=replace(compiler, mode="max-autotune"))
        yield switch(Area.COMPILER, "mode", "default", "max-autotune", tuned)
    if ambient.autocast:
        yield with_ambient("autocast", "on", "off", autocast=())
    elif len(devices) == 1 and repro.place is not Place.AFTER_AOT and torch.float32 in types:
        yield with_ambient("autocast", "off", "on", autocast=(Autocast(devices.pop(), "bfloat16"),))
    available = os.cpu_count() or 1
    if available > 1 and sum(tensor.numel() for tensor in tensors) >= _PARALLEL:
        threads = min(ambient.threads or torch.get_num_threads(), available)
        other = 1 if threads > 1 else available
        yield with_ambient("threads", str(threads), str(other), threads=other)
    yield from _dynamic_shapes(repro)


def _gradients(repro: Repro, names: Names) -> Iterator[Subject]:
    """Yield the subject of gradients: with them if the repro has none, else without."""
    ambient = repro.ambient
    inputs = [held for held in tensor_inputs(repro).values() if held.tensor.is_floating_point()]
    recorded = ambient.grad_enabled and not ambient.inference_mode
    if repro.place is not Place.AFTER_CAPTURE or not recorded or not inputs:
        return
    wanting = [held for held in inputs if held.tensor.requires_grad]
    varied = wanting or inputs
    who = listed([names[held.index or 0] for held in varied])
    verb = "requires" if len(wanting) == 1 else "require"
    changed = {held: held.tensor.detach().requires_grad_(not wanting) for held in varied}
    yield switch(
        Area.GRADIENTS,
        "requires_grad",
        *(("with", "without") if wanting else ("without", "with")),
        with_tensors(repro, changed),
        edit=f"{'no ' if wanting else ''}gradients for {who}",
        alike="with and without gradients alike",
        matters=f"only if {who} {verb} grad" if wanting else "only without gradients",
    )


def _dynamic_shapes(repro: Repro) -> Iterator[Subject]:
    """Yield the subject of dynamic shapes: static ones if the repro has symbols, else dynamic if possible."""
    own, other = ("dynamic", "static") if repro.symbols else ("static", "dynamic")
    names = {symbol.name for symbol in repro.symbols}
    made = with_numbers(repro, names) if names else _with_symbols(repro)
    if made is not None:
        yield switch(
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
    """Return the repro with every input size above 1 as a symbol, equal sizes as one, as by `dynamic=True`.

    As in a captured graph, the sizes are inputs, before all others. Without those, inductor does not fold
    `x * 0`, which hid the failure of softshrink on NaN. None where nothing would change, or where strides
    would have to become expressions as well.
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
