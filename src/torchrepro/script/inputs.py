"""The inputs of a repro: a line for each that can be made in one, a file next to the script for the rest.

Dynamic sizes of a graph's inputs, by the notes that its placeholders carry.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.bundle.tensors import MARKS, read_marks
from torchrepro.graph_text.annotations import SymbolNote, TensorNote, note_of_node
from torchrepro.judge.compare import tensors_in
from torchrepro.script.expressions import Unwritable, Writer, listed
from torchrepro.script.layout import WIDTH, filled, top_level_items
from torchrepro.script.tensor_values import Line
from torchrepro.script.tensors import Surroundings, after_drawing, line_for
from torchrepro.torch_api.names import DYNAMO
from torchrepro.torch_api.tensors import is_zero_tensor, storage_identity

SIDE_FILE = "inputs.pt"
_LIST = "torch.tensor(["


@dataclass
class Inputs:
    """Lines that make values, and how each value is then named in a call."""

    around: Surroundings = field(default_factory=Surroundings)
    lines: list[str] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    """What goes to the file, by name."""
    _made: dict[int, str] = field(default_factory=dict)
    _memories: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Add lines that make these values; return the text by which each is passed."""
        memories = _shared_memories(values)
        return {name: self._argument(name, value, memories) for name, value in values.items()}

    def expression(self, name: str, value: torch.Tensor, *, longest: int = WIDTH) -> str:
        """Return an expression for a tensor without a line of its own; it loads the file where it must."""
        line = line_for(value, self.around)
        if line is None or line.drawn or len(line.text) > longest:
            return self._from_file(name, value)
        return line.text

    @property
    def side_files(self) -> dict[str, bytes]:
        if not self.kept:
            return {}
        buffer = io.BytesIO()
        torch.save(self.kept, buffer)
        return {SIDE_FILE: buffer.getvalue()}

    def _argument(self, name: str, value: Any, shared: Mapping[tuple[str, int], torch.Tensor]) -> str:
        if not isinstance(value, torch.Tensor):
            return self._collection(name, value)
        if id(value) not in self._made:
            self._made[id(value)] = name
            place = storage_identity(value) if _has_memory(value) else None
            if place is not None and place in shared:
                self._view(name, value, place, shared[place])
            else:
                self._tensor(name, value)
            self._marks(name, value)
        return self._made[id(value)]

    def _tensor(self, name: str, value: torch.Tensor) -> None:
        line = line_for(value, self.around)
        if line is None:
            self.lines.append(f"{name} = {self._from_file(name, value)}")
            return
        if line.seed is not None:
            self.lines.append(f"torch.manual_seed({line.seed})")
        if line.drawn:
            self.around = after_drawing(line, self.around)
        self.lines.append(_assignment(name, line))

    def _collection(self, name: str, value: Any) -> str:
        if type(value) not in (list, tuple):
            return str(Writer({}).write(value))
        items = [
            self.expression(f"{name}{number}", item)
            if isinstance(item, torch.Tensor)
            else self._collection(f"{name}{number}", item)
            for number, item in enumerate(value)
        ]
        return listed(items, type(value))

    def _view(self, name: str, value: torch.Tensor, place: tuple[str, int], memory: torch.Tensor) -> None:
        """Add a line for a tensor on memory that it shares with others."""
        if value.requires_grad or value.dtype is not memory.dtype:
            self.lines.append(f"{name} = {self._from_file(name, value)}")
            return
        if place not in self._memories:
            self._memories[place] = f"memory{len(self._memories) or ''}"
            self._tensor(self._memories[place], memory)
        size, stride, offset = tuple(value.shape), tuple(value.stride()), value.storage_offset()
        self.lines.append(f"{name} = {self._memories[place]}.as_strided({size}, {stride}, {offset})")

    def _from_file(self, name: str, value: torch.Tensor) -> str:
        self.kept[name] = value if value.is_leaf else value.detach().requires_grad_()
        return f'torch.load(Path(__file__).with_name("{SIDE_FILE}"))["{name}"]'

    def _marks(self, name: str, value: torch.Tensor) -> None:
        """Add lines for the marks that `mark_dynamic` and its siblings left on dimensions."""
        for mark in read_marks(value):
            limits = {"min": mark.minimum, "max": mark.maximum}
            given = "".join(f", {word}={limit}" for word, limit in limits.items() if limit is not None)
            self.lines.append(f"{DYNAMO}.{MARKS[mark.mark][1]}({name}, {mark.dim}{given})")


def _assignment(name: str, line: Line) -> str:
    """Return the assignment, its list filled over several lines where it is too long for one."""
    statement = f"{name} = {line.text}"
    if len(statement) <= WIDTH or not line.text.startswith(_LIST):
        return statement
    end = line.text.index("]")
    items = list(top_level_items(line.text[len(_LIST) : end]))
    return filled(name, _LIST, items, line.text[end:])


def _has_memory(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not is_zero_tensor(value) and value.numel() > 0


def _shared_memories(values: Mapping[str, Any]) -> dict[tuple[str, int], torch.Tensor]:
    """Return the memory that several different tensors share, as one flat tensor each."""
    places: dict[tuple[str, int], list[torch.Tensor]] = {}
    for _, tensor in tensors_in(list(values.values())):
        if _has_memory(tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            places.setdefault(storage_identity(tensor), []).append(tensor)
    return {place: _flat(found) for place, found in places.items() if len(found) > 1}


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first = tensors[0].detach()
    if first.is_conj() or first.is_neg():
        raise Unwritable("inputs that share memory, one of them conjugated")
    size = first.untyped_storage().nbytes() // first.dtype.itemsize
    return first.as_strided((size,), (1,), 0)


def sizes_of_inputs(module: GraphModule) -> dict[Node, tuple[Node, int]]:
    """Return (tensor, dimension) for each input that is a size of another input."""
    places: dict[str | int, tuple[Node, int]] = {}
    for node, dim, size in dimensions_of_inputs(module):
        if node.users:
            places.setdefault(size, (node, dim))
    used = [node for node in module.graph.nodes if node.op == "placeholder" and node.users]
    return {
        node: places[note.expression]
        for node in used
        if isinstance(note := note_of_node(node), SymbolNote) and note.expression in places
    }


def dimensions_of_inputs(module: GraphModule) -> Iterator[tuple[Node, int, str | int]]:
    """Yield (input, dimension, size) of every input that is a tensor; a symbolic size is text."""
    for node in module.graph.nodes:
        note = note_of_node(node) if node.op == "placeholder" else None
        if isinstance(note, TensorNote):
            for dim, size in enumerate(note.shape):
                yield node, dim, size
