"""The tensors of a repro, each once with all its places: replace them, slice them.

A tensor can be an input of the call and of an earlier one; it stays one tensor. Only those are listed that
can be recreated from their values alone: no wrappers, nothing sparse or quantised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.judge.clone import is_plain
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Place, Repro
from torchrepro.torch_api.tensors import storage_number

Spot = tuple[int, int] | str
"""(call, index) of an input, where call 0 is the call itself and 1 the first before it; or an attribute."""


@dataclass(frozen=True)
class Held:
    """A tensor and its places. `shares`: another tensor of the repro uses the same memory.

    Two are equal if their places are, whatever the tensors.
    """

    tensor: torch.Tensor = field(compare=False)
    spots: tuple[Spot, ...]
    shares: bool = field(default=False, compare=False)

    @property
    def index(self) -> int | None:
        """Its index among the inputs of the call itself."""
        return next((spot[1] for spot in self.spots if isinstance(spot, tuple) and spot[0] == 0), None)

    @property
    def is_of_the_call(self) -> bool:
        """Whether the call itself uses it, not only earlier calls."""
        return any(isinstance(spot, str) or spot[0] == 0 for spot in self.spots)


def held_tensors(repro: Repro) -> list[Held]:
    """Return the tensors that can be recreated: inputs, those of earlier calls, attributes of the graph."""
    spots: dict[int, list[Spot]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for spot, tensor in _spots(repro):
        spots.setdefault(id(tensor), []).append(spot)
        tensors[id(tensor)] = tensor
    memory = Counter(storage_number(tensor.untyped_storage()) for tensor in tensors.values())
    return [
        Held(tensor, tuple(spots[key]), memory[storage_number(tensor.untyped_storage())] > 1)
        for key, tensor in tensors.items()
    ]


def with_tensors(repro: Repro, others: Mapping[Held, torch.Tensor]) -> Repro:
    """Return the repro with some tensors replaced."""
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
    """Return these values as a tensor of the same kind: a parameter, a leaf, one that requires gradients."""
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
        return found  # the attributes of the user's module are left alone
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
    """Return how many elements all inputs, those of earlier calls, and constants of the graph have."""
    return count_elements_of(all_tensors(repro))


def all_tensors(repro: Repro) -> list[Any]:
    """Return every tensor of a repro: inputs, earlier calls, constants of the graph."""
    held = (*repro.graph.parameters(), *repro.graph.buffers())
    return [tensor for _, tensor in tensors_in((repro.inputs, repro.earlier, held))]


def count_elements_of(tensors: list[Any]) -> int:
    """Return how many elements these tensors have together."""
    return sum(size for tensor in tensors if isinstance(size := tensor.numel(), int))


_LOOKS_UP = ("index", "embedding", "gather", "scatter", "take", "put", "nll_loss", "cross_entropy", "one_hot")


@torch.no_grad()
def window(tensor: torch.Tensor, starts: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Return a copy of the part of a tensor that begins at `starts`, with its strides in the same order.

    Sizes beyond the tensor repeat its last element: a literal that follows others may grow.
    """
    part = tensor.detach()
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        wanted = torch.arange(start, start + size, device=part.device).clamp(max=part.shape[axis] - 1)
        if size != part.shape[axis] or start:
            part = part.index_select(axis, wanted)
    return made_like(laid_out_like(part, tensor), tensor)


@torch.no_grad()
def laid_out_like(values: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values with the layout of another tensor of this rank.

    Contiguous and permuted tensors have no gaps and stay so. Where there are gaps the strides stay as they
    are, in a storage just large enough; an expanded dimension (stride 0) stays expanded.
    """
    if values.dim() != model.dim() or model.is_contiguous():
        return values.clone(memory_format=torch.contiguous_format)
    part = values
    for axis, step in enumerate(model.stride()):
        if step == 0 and model.shape[axis] > 1:
            part = part.narrow(axis, 0, 1)
    if _without_gaps(model):
        outermost_first = sorted(
            range(model.dim()), key=lambda axis: (model.stride(axis), model.shape[axis]), reverse=True
        )
        inverse = sorted(range(model.dim()), key=outermost_first.__getitem__)
        made = part.permute(outermost_first).clone(memory_format=torch.contiguous_format).permute(inverse)
    else:
        span = 1 + sum((size - 1) * step for size, step in zip(part.shape, model.stride(), strict=True))
        memory = torch.zeros(max(span, 1), dtype=values.dtype, device=values.device)
        made = memory.as_strided(part.shape, model.stride()).copy_(part)
    made = made.expand(values.shape)
    return values.clone(memory_format=torch.contiguous_format) if made.is_contiguous() else made


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a tensor."""
    with torch.no_grad():
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
    return made_like(values, tensor)


def _without_gaps(tensor: torch.Tensor) -> bool:
    step = 1
    axes = [axis for axis in range(tensor.dim()) if tensor.shape[axis] > 1 and tensor.stride(axis) > 0]
    for axis in sorted(axes, key=tensor.stride):
        if tensor.stride(axis) != step:
            return False
        step *= tensor.shape[axis]
    return True


def indices_below(
    repro: Repro, tensors: Sequence[tuple[Held, torch.Tensor]], limits: Sequence[tuple[int, int]]
) -> dict[Held, torch.Tensor]:
    """Return tensors of indices into a dimension that became smaller, reduced modulo its new size.

    That a tensor holds indices is a guess: the graph has an op that takes indices, and all of its values were
    below a size that has become smaller. `limits` has the sizes before and after.
    """
    if not limits or not any(map(_looks_up, repro.graph.graph.nodes)):
        return {}
    found = {}
    for held, tensor in tensors:
        if tensor.dtype not in (torch.int64, torch.int32) or not tensor.numel():
            continue
        highest = int(held.tensor.max())
        new = [after for before, after in limits if highest < before]
        if new and int(tensor.max()) >= min(new):
            found[held] = made_like(tensor.detach() % min(new), tensor)
    return found


def _looks_up(node: Node) -> bool:
    if node.op == "placeholder":
        return False  # it may be named after an op that was cut
    name = str(getattr(node.target, "__name__", node.target))
    if name in ("getitem", "setitem"):
        return not isinstance(node.args[1], int)
    return any(word in name for word in _LOOKS_UP)
