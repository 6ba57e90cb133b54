"""The tensors of a repro, each once with all the places where it stands, and how to put others there.

A tensor can be given twice, to the call and to one before it; it stays one tensor. Only those are named that
can be made anew from their values alone: no wrappers, nothing sparse or quantised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchrepro.judge.leaves import tensors_in
from torchrepro.judge.shadow import is_plain
from torchrepro.nouns.repro import Place, Repro

Spot = tuple[int, int] | str
"""(call, index) of an input, where call 0 is the call itself and 1 the first before it; or an attribute."""


@dataclass(frozen=True)
class Held:
    """A tensor and where it stands. `shares`: another one of them looks at the same memory.

    Two are the same if they stand in the same places, whatever the tensor there.
    """

    tensor: torch.Tensor = field(compare=False)
    spots: tuple[Spot, ...]
    shares: bool = field(default=False, compare=False)

    @property
    def index(self) -> int | None:
        """Which input of the call itself it is."""
        return next((spot[1] for spot in self.spots if isinstance(spot, tuple) and spot[0] == 0), None)


def held_tensors(repro: Repro) -> list[Held]:
    """The tensors that can be made anew, in the order in which a reader meets them."""
    spots: dict[int, list[Spot]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for spot, tensor in _spots(repro):
        spots.setdefault(id(tensor), []).append(spot)
        tensors[id(tensor)] = tensor
    memory = Counter(tensor.untyped_storage()._cdata for tensor in tensors.values())
    return [
        Held(tensor, tuple(spots[key]), memory[tensor.untyped_storage()._cdata] > 1)
        for key, tensor in tensors.items()
    ]


def with_tensors(repro: Repro, others: Mapping[Held, torch.Tensor]) -> Repro:
    """The repro with other tensors in the place of some."""
    calls = [list(repro.inputs), *map(list, repro.earlier)]
    attributes: dict[str, torch.Tensor] = {}
    for held, tensor in others.items():
        for spot in held.spots:
            if isinstance(spot, str):
                attributes[spot] = tensor
            else:
                calls[spot[0]][spot[1]] = tensor
    graph = _with_attributes(repro.graph, attributes) if attributes else repro.graph
    inputs, *earlier = map(tuple, calls)
    return replace(repro, graph=graph, inputs=inputs, earlier=tuple(earlier))


def made_like(values: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """These values as a tensor of the same kind: a parameter, a leaf, one that asks for gradients."""
    floats = values.dtype.is_floating_point or values.dtype.is_complex
    if isinstance(model, torch.nn.Parameter):
        return torch.nn.Parameter(values, requires_grad=model.requires_grad and floats)
    if not (model.requires_grad and floats):
        return values
    leaf = values.requires_grad_()
    if model.is_leaf:
        return leaf
    with torch.enable_grad():
        return leaf.view_as(leaf) if not leaf.is_contiguous() else leaf.clone()


def _spots(repro: Repro) -> list[tuple[Spot, torch.Tensor]]:
    found: list[tuple[Spot, torch.Tensor]] = [
        ((call, index), value)
        for call, inputs in enumerate((repro.inputs, *repro.earlier))
        for index, value in enumerate(inputs)
        if _can_be_made(value)
    ]
    if repro.place is Place.BEFORE_CAPTURE:
        return found  # what the user's module holds is the user's
    for node in repro.graph.graph.nodes:
        if node.op == "get_attr" and "." not in str(node.target):
            value: Any = getattr(repro.graph, str(node.target), None)
            if _can_be_made(value):
                found.append((str(node.target), value))
    return list({spot: (spot, tensor) for spot, tensor in found}.values())


def _can_be_made(value: object) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and isinstance(value, torch.Tensor)
        and is_plain(value)
        and value.device.type != "meta"
        and not value.is_conj()
        and not value.is_neg()
    )


def _with_attributes(module: GraphModule, tensors: Mapping[str, torch.Tensor]) -> GraphModule:
    made = GraphModule(module, module.graph, class_name="Graph")
    for name, tensor in tensors.items():
        delattr(made, name)
        if isinstance(tensor, torch.nn.Parameter):
            made.register_parameter(name, tensor)
        else:
            made.register_buffer(name, tensor)
    return made


def count_elements(repro: Repro) -> int:
    """Elements in all inputs and in the constants of the graph, those of earlier calls included."""
    return count_elements_of(all_tensors(repro))


def all_tensors(repro: Repro) -> list[Any]:
    """Return every tensor of a repro: inputs, earlier calls, constants of the graph."""
    held = (*repro.graph.parameters(), *repro.graph.buffers())
    return [tensor for _, tensor in tensors_in((repro.inputs, repro.earlier, held))]


def count_elements_of(tensors: list[Any]) -> int:
    """Return how many elements these tensors have together."""
    return sum(size for tensor in tensors if isinstance(size := tensor.numel(), int))
