"""The values that an eager run passes from op to op, kept so that a graph can be cut anywhere.

With them a piece of a graph is independent of all that comes before it: what it reads is an input that holds
the recorded value. An operand that is written to between its definition and its use is kept as it was at the
use as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import Interpreter, Node

from torchrepro.execute.collectives import without_other_ranks
from torchrepro.execute.judge_repro import Prepared
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.repro import Repro
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.tensors import version_of

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
        """Return what a node read from an operand, as a new object each time.

        Tensors are new objects on the same memory, so that two inputs with one value have a gradient each.
        """
        kept = self.at_use.get((operand, user)) or self.values.get(operand)
        if kept is None:
            raise NotRecorded(operand)
        if isinstance(kept.value, torch.Tensor):
            return kept.value.detach().requires_grad_(kept.requires_grad)
        return kept.value

    def result(self, name: str) -> Any:
        """Return what a node computed."""
        return self.value(name, "")

    def knows(self, name: str) -> bool:
        return name in self.values


def observed_values(repro: Repro, *, limit: int) -> Recording:
    """Run a graph eagerly in this process and record its values, in graph order, up to `limit` bytes."""
    with _observing(repro, limit) as (observer, inputs):
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
    """Return the node at which an eager run in this process raises; None where it finishes."""
    with _observing(repro, limit=0) as (observer, inputs):
        try:
            observer.run(*inputs)
        except Exception:  # the user's computation can raise anything; only the node matters here
            return observer.at
    return None


@contextmanager
def _observing(repro: Repro, limit: int) -> Iterator[tuple[_Observer, tuple[Any, ...]]]:
    """Yield an interpreter of a copy of the graph, and copies of its inputs, in the state of the repro."""
    prepared = Prepared(repro)
    observer, inputs = _Observer(prepared.graph(), limit), prepared.inputs()
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    alone = without_other_ranks(repro)
    with applied_settings(repro.ambient), same_randomness(start), prepared.modes(), alone:
        yield observer, inputs


def write_values(recording: Recording, path: Path) -> None:
    """Write a recording to a file that the parent process maps into its memory."""
    values, at_use = (
        {key: (kept.value, kept.requires_grad) for key, kept in table.items()}
        for table in (recording.values, recording.at_use)
    )
    nodes = [sorted(each) for each in (recording.several, recording.overwritten, recording.late)]
    torch.save((values, at_use, dict(recording.sizes), *nodes), path)


def read_values(path: Path) -> Recording:
    """Read what `write_values` wrote, as data: nothing in the file is executed."""
    values, at_use, sizes, *nodes = torch.load(path, mmap=True, weights_only=True)
    several, overwritten, late = map(frozenset, nodes)
    return Recording(
        {name: Kept(*pair) for name, pair in values.items()},
        {key: Kept(*pair) for key, pair in at_use.items()},
        several,
        sizes,
        overwritten,
        late,
    )


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
        """The node that is running."""
        self._versions: dict[str, int] = {}
        self._left = limit

    def overwritten(self) -> frozenset[str]:
        """Return, after the run, the nodes whose tensor was written to since they computed it."""
        now = {node.name: value for node, value in self.env.items() if isinstance(value, torch.Tensor)}
        return frozenset(
            name
            for name, version in self._versions.items()
            if name in now and version_of(now[name]) != version
        )

    def run_node(self, n: Node) -> Any:
        self.at = n.name
        for operand in n.all_input_nodes:
            value = self.env.get(operand)
            known = self._versions.get(operand.name)
            if isinstance(value, torch.Tensor) and known not in (None, version_of(value)):
                self.late.add(n.name)
                self._keep(self.at_use, (operand.name, n.name), value)
        result = super().run_node(n)
        if n.op not in ("placeholder", "output", "get_attr"):
            self._keep(self.values, n.name, result)
            if _is_plain_tensor(result):
                self.sizes[n.name] = result.numel() * result.itemsize
        if isinstance(result, tuple | list) and not _is_plain(result):
            self.several.add(n.name)
        if isinstance(result, torch.Tensor):
            self._versions[n.name] = version_of(result)
        return result

    def _keep(self, table: dict[Any, Kept], key: Any, value: Any) -> None:
        if _is_plain(value):
            table[key] = Kept(tuple(value) if isinstance(value, torch.Size) else value)
        elif _is_plain_tensor(value) and value.numel() * value.itemsize <= self._left:
            copy = _copied_tensor(value.detach())
            self._left -= copy.untyped_storage().nbytes()
            table[key] = Kept(copy, value.requires_grad)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number or size. Tensors in a tuple are kept by the nodes that unpack it."""
    items = value if isinstance(value, tuple | list) else (value,)
    return all(isinstance(item, PLAIN) for item in items)


def _is_plain_tensor(value: Any) -> bool:
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        return False
    return value.layout is torch.strided and not value.is_quantized


def _copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with equal strides, without the rest of a storage of which it is a small part."""
    if tensor.untyped_storage().nbytes() <= 2 * tensor.numel() * tensor.itemsize:
        (copy,) = clone_inputs((tensor,))
        return copy
    dense = torch.empty_like(tensor)  # keeps the order of the dimensions
    return dense.copy_(tensor)
