"""The values that an eager run passes from op to op, kept so that a graph can be cut anywhere.

With them a piece of a graph is independent of all that comes before it: what it reads is an input that holds
the recorded value. An operand that is written to between its definition and its use is kept as it was at the
use as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import Interpreter, Node

from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.repro import Repro
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.generators import capture_rng_state, same_randomness

PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout)


class NotRecorded(Exception):
    """A value that could not be kept: too large, or not data."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A value as it was, and whether gradients flow to it."""

    value: Any
    requires_grad: bool = False


@dataclass(frozen=True, eq=False)
class Recording:
    """Values by the name of the node, and by (operand, user) where the operand was written to in between."""

    values: Mapping[str, Kept]
    at_use: Mapping[tuple[str, str], Kept] = field(default_factory=dict)
    several: frozenset[str] = frozenset()
    """Nodes that return several values, which other nodes take apart."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each plain tensor that a node computed, kept or not."""
    overwritten: frozenset[str] = frozenset()
    """Nodes, inputs among them, whose tensor is written to after they have computed it."""
    late: frozenset[str] = frozenset()
    """Nodes that read an operand which has been written to since it was computed."""

    def value(self, operand: str, user: str) -> Any:
        """What a node read from an operand, as a value of its own each time."""
        kept = self.at_use.get((operand, user)) or self.values.get(operand)
        if kept is None:
            raise NotRecorded(operand)
        return _fresh(kept)

    def result(self, name: str) -> Any:
        """What a node computed."""
        if name not in self.values:
            raise NotRecorded(name)
        return _fresh(self.values[name])

    def knows(self, name: str) -> bool:
        return name in self.values


def observed_values(repro: Repro, *, limit: int) -> Recording:
    """Run a graph eagerly in this process; at most `limit` bytes are kept, the values met first."""
    from torchrepro.execute.judge_repro import Prepared

    prepared = Prepared(repro)
    graph, inputs = prepared.graph(), prepared.inputs()
    observer = _Observer(graph, limit)
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    with applied_settings(repro.ambient), same_randomness(start), prepared.modes():
        observer.run(*inputs)
    return Recording(
        observer.values,
        observer.at_use,
        frozenset(observer.several),
        observer.sizes,
        observer.overwritten(),
        frozenset(observer.late),
    )


def raising_node(repro: Repro) -> str | None:
    """The node at which an eager run in this process raises; None where it finishes."""
    from torchrepro.execute.judge_repro import Prepared

    prepared = Prepared(repro)
    observer = _Observer(prepared.graph(), limit=0)
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    with applied_settings(repro.ambient), same_randomness(start), prepared.modes():
        try:
            observer.run(*prepared.inputs())
        except Exception:  # whatever the user's computation raises: where it does is the question
            return observer.at
    return None


def write_values(recording: Recording, path: Path) -> None:
    """To a file that the parent maps into its memory."""
    values = {name: (kept.value, kept.requires_grad) for name, kept in recording.values.items()}
    at_use = {key: (kept.value, kept.requires_grad) for key, kept in recording.at_use.items()}
    others = {"several": recording.several, "overwritten": recording.overwritten, "late": recording.late}
    torch.save(
        {"values": values, "at_use": at_use, "sizes": dict(recording.sizes)}
        | {name: sorted(nodes) for name, nodes in others.items()},
        path,
    )


def read_values(path: Path) -> Recording:
    """What `write_values` wrote. It is data, not code: nothing in it is run."""
    found = torch.load(path, mmap=True, weights_only=True)
    return Recording(
        {name: Kept(*pair) for name, pair in found["values"].items()},
        {key: Kept(*pair) for key, pair in found["at_use"].items()},
        frozenset(found["several"]),
        found["sizes"],
        frozenset(found["overwritten"]),
        frozenset(found["late"]),
    )


def _fresh(kept: Kept) -> Any:
    """Another tensor on the same memory, so that two inputs with one value have a gradient each."""
    if isinstance(kept.value, torch.Tensor):
        return kept.value.detach().requires_grad_(kept.requires_grad)
    return kept.value


class _Observer(Interpreter):
    """Runs a graph and keeps what its nodes compute and what they read."""

    def __init__(self, graph: torch.fx.GraphModule, limit: int) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.values: dict[str, Kept] = {}
        self.at_use: dict[tuple[str, str], Kept] = {}
        self.several: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.late: set[str] = set()
        self.at: str | None = None
        """The node that runs."""
        self._versions: dict[str, int] = {}
        self._left = limit

    def overwritten(self) -> frozenset[str]:
        """After the run: nodes whose tensor is not what it was."""
        now = {node.name: value for node, value in self.env.items() if isinstance(value, torch.Tensor)}
        return frozenset(
            name for name, version in self._versions.items() if name in now and _version(now[name]) != version
        )

    def run_node(self, n: Node) -> Any:
        self.at = n.name
        for operand in n.all_input_nodes:
            value = self.env.get(operand)
            known = self._versions.get(operand.name)
            if isinstance(value, torch.Tensor) and known not in (None, _version(value)):
                self.late.add(n.name)
                self._keep((operand.name, n.name), value)
        result = super().run_node(n)
        if n.op not in ("placeholder", "output", "get_attr"):
            self._keep(n.name, result)
            if _is_plain_tensor(result):
                self.sizes[n.name] = result.numel() * result.itemsize
        if isinstance(result, tuple | list) and not _is_plain(result):
            self.several.add(n.name)
        if isinstance(result, torch.Tensor):
            self._versions[n.name] = _version(result)
        return result

    def _keep(self, key: str | tuple[str, str], value: Any) -> None:
        kept = self._copied(value)
        if kept is None:
            return
        if isinstance(key, str):
            self.values[key] = kept
        else:
            self.at_use[key] = kept

    def _copied(self, value: Any) -> Kept | None:
        if _is_plain(value):
            return Kept(tuple(value) if isinstance(value, torch.Size) else value)
        if not _is_plain_tensor(value) or value.numel() * value.itemsize > self._left:
            return None
        copy = _copied_tensor(value.detach())
        self._left -= copy.untyped_storage().nbytes()
        return Kept(copy, value.requires_grad)


def _is_plain(value: Any) -> bool:
    """A number or a size. Several tensors are kept one by one, by the nodes that take them apart."""
    if isinstance(value, tuple | list):
        return all(isinstance(item, PLAIN) for item in value)
    return isinstance(value, PLAIN)


def _is_plain_tensor(value: Any) -> bool:
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        return False
    return value.layout is torch.strided and not value.is_quantized


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors have no counter: what writes to them is not seen.
    return 0 if tensor.is_inference() else tensor._version


def _copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Equal values at equal strides, without the rest of a memory of which it is a small part."""
    if tensor.untyped_storage().nbytes() <= 2 * tensor.numel() * tensor.itemsize:
        (copy,) = clone_inputs((tensor,))
        return copy
    dense = torch.empty_like(tensor)  # keeps the order of the dimensions
    return dense.copy_(tensor)
