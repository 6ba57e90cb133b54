"""The order on repros: of two that fail in the same way, which one would a maintainer rather read?

Total, so that any two can be compared: operations, then inputs, then elements, then settings that are not
torch's own, then the length of the text, then how plain the values are. Equal keys mean that neither is
preferred; the first one found stays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchrepro.bundle.graph_text import write_graph
from torchrepro.errors import TorchReproError
from torchrepro.judge.leaves import tensors_in
from torchrepro.repro import Compiler, Repro


class Size(NamedTuple):
    """Compared from the first field to the last."""

    ops: int
    inputs: int
    elements: int
    settings: int
    text: int
    irregularity: int

    def __str__(self) -> str:
        parts = [(self.ops, "op"), (self.inputs, "input"), (self.elements, "element")]
        return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in parts)


def size_of(repro: Repro) -> Size:
    """The key by which repros are ordered."""
    return Size(
        ops=repro.ops,
        inputs=len(repro.inputs),
        elements=count_elements(repro),
        settings=count_settings(repro),
        text=_text_length(repro),
        irregularity=sum(_irregularity(tensor) for _, tensor in tensors_in(repro.inputs)),
    )


def count_elements(repro: Repro) -> int:
    """Elements in all inputs and in the constants of the graph, those of earlier calls included."""
    held = [*repro.graph.parameters(), *repro.graph.buffers()]
    given = [tensor for _, tensor in tensors_in((repro.inputs, repro.earlier))]
    return sum(tensor.numel() for tensor in (*given, *held))


def count_settings(repro: Repro) -> int:
    """What a reader must set up that is not torch's default, and calls that must come before."""
    compiler, plain = repro.compiler, Compiler()
    chosen = (compiler.mode != plain.mode) + (compiler.dynamic is not None) + len(compiler.options)
    configs = len(repro.ambient.non_default) + len(repro.ambient.environ) + bool(repro.ambient.rng)
    judged = repro.strict + (repro.tolerance is not None)
    return chosen + configs + judged + len(repro.earlier) + len(repro.symbols)


def _text_length(repro: Repro) -> int:
    try:
        return len(write_graph(repro.graph).text)
    except TorchReproError:
        # Not kept as text, so nobody reads it; the number of nodes has been counted already.
        return 1 << 30


def _irregularity(tensor: Any) -> int:
    """0 for one value throughout, 1 for a plain progression or small whole numbers, 2 for anything else.

    One more for a layout or a dtype that has to be spelled out.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return 4
    unusual = (not tensor.is_contiguous()) + (tensor.dtype not in (torch.float32, torch.int64, torch.bool))
    if tensor.numel() < 2:
        return unusual
    flat = tensor.detach().reshape(-1)
    if flat.dtype.is_floating_point and flat.dtype.itemsize < 2:
        return unusual + 2
    if bool((flat == flat[0]).all()) or bool(flat.isnan().all()):
        return unusual
    if bool((flat.diff() == flat[1] - flat[0]).all()) if flat.dtype is not torch.bool else False:
        return unusual + 1
    return unusual + 2
