"""Programs out of real graphs: a few neighbouring ops on the values that they had in the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

import torch

from torchrepro.bundle.load import load_verified
from torchrepro.bundle.provenance import is_own
from torchrepro.cut.record_values import Recording, observed_values
from torchrepro.cut.subgraph import piece, without_symbols
from torchrepro.cut.units import ambient_at, units_of
from torchrepro.hunt.generators.tensors import with_layout, with_special_values
from torchrepro.hunt.registry import Draw
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.fake_run import silent_torch

_LENGTHS = (1, 2, 2, 3, 3, 4, 5, 6, 8)
_RECORDED_BYTES = 1 << 28


def generate(draw: Draw) -> Repro | None:
    """Return a window of one of the sources, whose inputs may have another layout or unusual values."""
    if not draw.sources:
        return None
    source = source_at(draw.sources[draw.shared.randrange(len(draw.sources))])
    return None if source is None else window(draw.random, source)


@dataclass(frozen=True, eq=False)
class Source:
    """A graph, and the values inside it."""

    repro: Repro
    recording: Recording


@cache
def source_at(bundle: Path) -> Source | None:
    """Return the graph of a bundle, recorded in this process; None if it cannot be.

    That is so for a whole call of the user, for a graph with `vmap` inside, whose values cannot be kept,
    where eager raises, and for a stranger's: its graph would run without the sandbox.
    """
    if not is_own(bundle):
        return None
    repro = without_symbols(load_verified(bundle))
    if repro.place is Place.BEFORE_CAPTURE or "functorch" in repro.graph.code:
        return None
    try:
        with silent_torch():
            return Source(repro, observed_values(repro, limit=_RECORDED_BYTES))
    except Exception:  # what eager raises, of whatever kind
        return None


def window(random: Random, source: Source) -> Repro | None:
    """Return some neighbouring ops of a graph as a program; None where they are none."""
    units = [
        unit for unit in units_of(source.repro.graph.graph, source.recording.several) if not unit.is_state
    ]
    if not units:
        return None
    length = random.choice(_LENGTHS)
    start = random.randrange(max(1, len(units) - length + 1))
    chosen = units[start : start + length]
    cut = piece(source.repro, source.recording, [name for unit in chosen for name in unit.nodes])
    if cut is None:
        return None
    ambient = ambient_at(source.repro.graph.graph, source.repro.ambient)[chosen[0].name]
    return replace(cut, ambient=ambient, inputs=varied(random, cut.inputs), expected=None, origin=None)


def varied(random: Random, inputs: tuple[object, ...]) -> tuple[object, ...]:
    """Return inputs of which some have another layout or unusual values."""
    special, laid_out = random.random() < 0.2, random.random() < 0.3

    def changed(value: object) -> object:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        tensor = value.detach()
        if special and tensor.is_floating_point() and random.random() < 0.7:
            tensor = with_special_values(random, tensor)
        if laid_out and random.random() < 0.7:
            tensor = with_layout(random, tensor)
        return tensor.requires_grad_(value.requires_grad)

    return tuple(map(changed, inputs))
