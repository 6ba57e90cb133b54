"""The cost of writing a repro down, which orders candidates next to their nodes and elements.

Of a graph: ops that run, gradients, how plain the arguments are. Of a tensor: zeros and ones are free; one
value throughout costs its digits; a progression costs more, seeded noise more than that, and arbitrary values
the digits of each element. A dtype and a layout that have to be spelled out cost something, and so does every
dimension beyond the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from torchrepro.bundle.storages import remembered
from torchrepro.cut.units import CALLS
from torchrepro.edit.plain_values import seeded_noise
from torchrepro.edit.surgery import reach
from torchrepro.nouns.repro import Place, Repro
from torchrepro.script.tensor_values import shortest_digits
from torchrepro.torch_api.tensors import is_zero_tensor

USUAL_DTYPES = (torch.float32, torch.int64, torch.bool)
"""The dtypes that torch infers for number literals."""


def count_runs(module: GraphModule) -> int:
    """Return how many ops run: those of a nested graph count once for each call of it.

    So a call of a graph is never smaller than the inlined ops of that graph.
    """
    total = 0
    for node in module.graph.nodes:
        if node.op in CALLS:
            paths = [operand.target for operand in node.all_input_nodes if operand.op == "get_attr"]
            paths = [node.target] if node.op == "call_module" else paths
            nested = [reach(module, str(path)) for path in paths]
            total += 1 + sum(count_runs(graph) for graph in nested if isinstance(graph, GraphModule))
    return total


def asks_for_gradients(repro: Repro) -> int:
    """Return 0: no gradients, 1: inputs require them, but none are computed, 2: there is a backward call too.

    Below AOT there are none, even where inputs require them.
    """
    if repro.place is Place.AFTER_AOT:
        return 0
    given = (*repro.inputs, *repro.graph.parameters())
    asked = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
    recorded = repro.ambient.grad_enabled and not repro.ambient.inference_mode
    return int(asked) + int(asked and recorded and repro.backward is not False)


def cost_of_arguments(module: GraphModule) -> int:
    """Return how far the numbers in a graph are from the plainest ones (`cost_of`)."""
    own = sum(cost_of(value) for node in module.graph.nodes for value in (*node.args, *node.kwargs.values()))
    nested = (child for child in module.children() if isinstance(child, GraphModule))
    return own + sum(cost_of_arguments(child) for child in nested)


def cost_of(value: Any) -> int:
    """Return the cost of an argument: integers 0, 1, then by size; floats 1.0, 0.0, then by length."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return abs(value) if abs(value) < 2 else 1 + abs(value).bit_length()
    if isinstance(value, float):
        return 0 if value == 1 else 1 if value == 0 else 1 + len(repr(value))
    if isinstance(value, tuple | list):
        return sum(map(cost_of, value))
    if isinstance(value, slice):
        return cost_of((value.start, value.stop, value.step))
    if isinstance(value, torch.dtype):
        return int(value not in USUAL_DTYPES)
    return 0


_PROGRESSION = 20
_NOISE = 30
OWN_VALUES = 60
"""For a tensor whose elements are written one by one."""
_SPELLED_OUT = 40
_EXOTIC = 10_000
_FEW = 64
"""Up to so many elements, each counts with its own digits."""
_MANY = 1 << 16
"""Above so many elements, values are not compared with seeded noise."""
_UNREAD = 1 << 20
"""Above so many elements, all count as irregular if the first ones are: reading them takes too long."""
_DIGITS = 10


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of no subclass and has its values in memory, element by element."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    without = tensor.is_nested or tensor.device.type == "meta" or is_zero_tensor(tensor)
    return not (tensor.is_quantized or without)


def cost_of_tensor(tensor: torch.Tensor) -> int:
    """Return the cost of one tensor."""
    if not is_ordinary(tensor):
        return _EXOTIC
    unusual = (not tensor.is_contiguous()) + (tensor.dtype not in USUAL_DTYPES)
    about = _SPELLED_OUT * unusual + max(0, tensor.dim() - 1)
    return about + cost_of_values(tensor)


def cost_of_values(tensor: torch.Tensor) -> int:
    """Return the cost of the values of an ordinary tensor, without that of its dtype and layout."""
    if not tensor.numel():
        return 0
    window = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj())
    return remembered(tensor, ("cost", window), lambda: _cost_of_values(tensor))


@torch.no_grad()
def _cost_of_values(tensor: torch.Tensor) -> int:
    flat = tensor.detach().reshape(-1)
    if flat.dtype.itemsize < 2 or flat.dtype in (torch.uint16, torch.uint32, torch.uint64):
        try:
            flat = flat.to(torch.float32)  # these types lack most operations
        except (NotImplementedError, RuntimeError):
            return OWN_VALUES + _DIGITS * flat.numel()  # and these lack all of them: four-bit types
    head = flat[:_FEW]
    if _is_uniform(head) and _is_uniform(flat):
        return cost_of_number(flat[0])
    if _is_progression(head) and _is_progression(flat):
        return _PROGRESSION + cost_of_number(flat[0]) + cost_of_number(flat[1] - flat[0])
    if flat.numel() > _UNREAD:
        return OWN_VALUES + _DIGITS * flat.numel()
    if (
        flat.numel() <= _MANY
        and flat.dtype.is_floating_point
        and torch.equal(tensor.detach(), seeded_noise(tensor))
    ):
        return _NOISE
    if flat.numel() <= _FEW:
        return OWN_VALUES + sum(1 + cost_of_number(number) for number in flat)
    return OWN_VALUES + int((flat != flat[0]).sum()) * _DIGITS


def cost_of_number(number: torch.Tensor) -> int:
    """Return how many characters a number takes; 0 for the plainest ones, 0 and 1."""
    value = number.item()
    if value in (0, 1):
        return 0
    return len(shortest_digits(value, number.dtype) if isinstance(value, float) else str(value))


def _is_uniform(flat: torch.Tensor) -> bool:
    return bool((flat == flat[0]).all()) or (not flat.is_complex() and bool(flat.isnan().all()))


def _is_progression(flat: torch.Tensor) -> bool:
    return flat.dtype is not torch.bool and bool((flat.diff() == flat[1] - flat[0]).all())
