"""The inputs of a repro that can be varied, under the names that a reader knows, and how to replace them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.edit.held_tensors import held_tensors
from torchrepro.nouns.repro import Repro

_CAPTURED = re.compile(r"[lL]_(\w+?)_?")
"""Capture calls the local variable `x` `L_x_`."""


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor among the inputs."""

    index: int
    name: str
    tensor: torch.Tensor

    @property
    def holds_numbers(self) -> bool:
        """Whether it holds floating or whole numbers that can be chosen at will."""
        dtype = self.tensor.dtype
        return not dtype.is_complex and (not dtype.is_floating_point or dtype.itemsize > 1)


def input_names(repro: Repro, names: Mapping[int, str] | None = None) -> list[str]:
    """What the inputs are called: by number as the caller says, else by the graph."""
    said = names or {}
    nodes = repro.graph.graph.find_nodes(op="placeholder")
    return [said.get(number, _readable(str(node.target))) for number, node in enumerate(nodes)]


def tensor_inputs(repro: Repro, names: Mapping[int, str] | None = None) -> list[Given]:
    """Plain tensors whose memory is theirs alone. What is shared cannot be changed in one place."""
    known = input_names(repro, names)
    return [
        Given(held.index, known[held.index], held.tensor)
        for held in held_tensors(repro)
        if held.index is not None and not held.shares
    ]


def with_inputs(repro: Repro, changed: Mapping[int, Any]) -> Repro:
    """The repro on other inputs; those that are not named stay the same objects."""
    values = (changed.get(index, value) for index, value in enumerate(repro.inputs))
    return replace(repro, inputs=tuple(values))


def _readable(name: str) -> str:
    found = _CAPTURED.fullmatch(name)
    return found.group(1) if found else name
