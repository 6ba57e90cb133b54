"""Programs of torch's operators on its own sample inputs: one call, or a chain of two to five.

Sizes, layouts and values vary (`tensors.py`): the samples of torch's tests are small, dense and ordinary. The
operators that a compiler generates code for are chosen more often than those that it calls.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, Proxy

from torchrepro.graph_text import resolver
from torchrepro.hunt.generators.tensors import (
    chosen_sizes,
    mapped,
    resized,
    tensors_of,
    with_layout,
    with_special_values,
)
from torchrepro.hunt.registry import Draw
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import silent_torch
from torchrepro.torch_api.operator_database import Operator, Sample, operators
from torchrepro.torch_api.pytree import tree_map_only

_LENGTHS = (1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5)
_ATTEMPTS = 8
"""How often another operator is tried where one does not take what the chain has."""
_SAMPLES = 12
"""Sample inputs from which one is drawn: the later ones cost time and differ little."""
_DTYPES = {
    torch.float32: 10,
    torch.bfloat16: 4,
    torch.float16: 4,
    torch.float64: 2,
    torch.int64: 3,
    torch.int32: 2,
    torch.uint8: 3,
    torch.int8: 2,
    torch.int16: 2,
    torch.bool: 2,
    torch.complex64: 1,
}
_MEANINGLESS = ("empty", "resize", "jiterator", "item", "to_sparse", "to_mkldnn", "data_ptr", "hash_tensor")
"""Parts of the names of operators whose results are unwritten memory, chaotic, or no dense tensors."""


def generate(draw: Draw) -> Repro | None:
    """Return a program of operators, or None if no operator took what was drawn."""
    random = draw.random
    chain = _Chain(random)
    with silent_torch(), torch.no_grad():
        for _ in range(random.choice(_LENGTHS)):
            if not any(chain.extend() for _ in range(_ATTEMPTS)):
                break
    return chain.repro()


def prepare() -> None:
    """Build the tables that every program needs: a process that is forked afterwards has them."""
    for dtype in (None, *_DTYPES):
        _groups(dtype)
    resolver.path_of(torch.relu)


@dataclass(eq=False)
class _Chain:
    """A graph that grows by calls, with the value of each node."""

    random: Random
    graph: Graph = field(default_factory=Graph)
    inputs: list[torch.Tensor] = field(default_factory=list)
    values: dict[Node, Any] = field(default_factory=dict)
    last: list[Node] = field(default_factory=list)
    """The tensors that the last call returned."""
    returned: list[Node] = field(default_factory=list)
    differentiable: bool = True
    drawn: int = 0
    """How many inputs there were, those of calls that failed included: a name is used once."""

    def extend(self) -> bool:
        """Append a call of an operator on the last result; return whether one was appended."""
        random = self.random
        given = random.choice(self.last) if self.last else None
        operator, sample = _drawn(random, None if given is None else self.values[given].dtype)
        if sample is None:
            return False
        sample, fed = self._fed(sample, given)
        if given is not None and not fed:
            return False
        in_place = bool(self.last) and operator.in_place is not None and random.random() < 0.15
        called = operator.in_place if in_place else operator.function
        nodes, inputs = set(self.graph.nodes), len(self.inputs)
        try:
            results = self._call(called, sample, fed)
        except Exception:  # whatever an operator raises for operands that it does not take
            results = []
        if not results:
            self._take_back(nodes, inputs)
            return False
        if self.random.random() < 0.3:
            self.returned += self.last
        self.last = results
        self.differentiable &= operator.differentiable
        return True

    def _fed(self, sample: Sample, given: Node | None) -> tuple[Sample, dict[int, Node]]:
        """Return a sample with varied tensors, and by their ids those that are results of the chain."""
        tensors = tensors_of((sample.args, sample.kwargs))
        if given is not None:
            if not tensors or tensors[0].dtype is not self.values[given].dtype:
                return sample, {}
            sizes = dict(zip(tensors[0].shape, self.values[given].shape, strict=False))
        else:
            sizes = chosen_sizes(self.random, tensors) if tensors and self.random.random() < 0.8 else {}
        special = self.random.random() < 0.35
        fed: dict[int, Node] = {}

        def varied(tensor: torch.Tensor) -> torch.Tensor:
            if given is not None and tensor is tensors[0]:
                result: torch.Tensor = self.values[given]
                fed[id(result)] = given
                return result
            if not _is_usual(tensor) or tensor.dtype not in _DTYPES:
                return tensor
            tensor = resized(self.random, tensor.detach(), sizes)
            if (special and tensor.is_floating_point()) or self.random.random() < 0.05:
                tensor = with_special_values(self.random, tensor)
            return with_layout(self.random, tensor) if self.random.random() < 0.3 else tensor

        args, kwargs = mapped((sample.args, sample.kwargs), varied)
        return Sample(args, kwargs), fed

    def _call(self, called: Any, sample: Sample, fed: dict[int, Node]) -> list[Node]:
        """Append the nodes of a call and run them; return those that are its tensors."""
        before = set(self.graph.nodes)
        known = dict(fed)

        def proxy(tensor: torch.Tensor) -> Proxy:
            if id(tensor) not in known:
                known[id(tensor)] = self._input(tensor)
            return Proxy(known[id(tensor)])

        args, kwargs = tree_map_only(torch.Tensor, proxy, (sample.args, sample.kwargs))
        result = called(*args, **kwargs)
        if not isinstance(result, Proxy):
            return []
        for node in [node for node in self.graph.nodes if node not in before and node.op != "placeholder"]:
            if node.op == "call_function" and resolver.path_of(node.target) is None:
                return []
            self._run(node)
        value = self.values[result.node]
        if isinstance(value, torch.Tensor):
            return [result.node] if _is_usual(value) else []
        if not isinstance(value, tuple | list) or not all(map(_is_usual, value)):
            return []
        parts = [
            self.graph.call_function(python_operator.getitem, (result.node, i)) for i in range(len(value))
        ]
        for part in parts:
            self._run(part)
        return parts

    def _input(self, tensor: torch.Tensor) -> Node:
        """Append an input; what runs here works on a copy, because it may write to it."""
        first = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        with self.graph.inserting_before(first) if first else nullcontext():
            node = self.graph.placeholder(f"x{self.drawn}")
        self.drawn += 1
        self.inputs.append(tensor)
        self.values[node] = clone_inputs((tensor,))[0]
        return node

    def _run(self, node: Node) -> None:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if node.op == "call_method":
            self.values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            self.values[node] = node.target(*args, **kwargs)  # type: ignore[operator]

    def _take_back(self, nodes: Collection[Node], inputs: int) -> None:
        """Leave these nodes, and so many inputs."""
        for node in reversed(list(self.graph.nodes)):
            if node not in nodes:
                self.graph.erase_node(node)
                self.values.pop(node, None)
        del self.inputs[inputs:]

    def repro(self) -> Repro | None:
        """Return the program, which computes gradients in a part of the cases."""
        if not self.last:
            return None
        self.graph.output(tuple(dict.fromkeys([*self.returned, *self.last])))
        floating = [tensor for tensor in self.inputs if tensor.is_floating_point()]
        if self.differentiable and floating and self.random.random() < 0.4:
            for tensor in floating:
                tensor.requires_grad_(tensor is floating[0] or self.random.random() < 0.7)
        return Repro(GraphModule({}, self.graph), tuple(self.inputs))


def _is_usual(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized


def _drawn(random: Random, dtype: torch.dtype | None) -> tuple[Operator, Sample | None]:
    """Return an operator that takes a dtype, any if None, and one of its samples if it has one."""
    groups = _groups(dtype)
    operator = random.choice(random.choices(groups, (5, 2, 3))[0])
    if dtype is None:
        own = [each for each in operator.dtypes() if each in _DTYPES]
        dtype = random.choices(own, [_DTYPES[each] for each in own])[0] if own else torch.float32
    wanted = random.randrange(_SAMPLES)
    try:
        samples = list(islice(operator.samples(dtype, wanted + 1), wanted + 1))
    except Exception:  # some samples need what this build of torch lacks
        samples = []
    return operator, random.choice(samples) if samples else None


@cache
def _groups(dtype: torch.dtype | None) -> tuple[tuple[Operator, ...], ...]:
    """Return the elementwise operators that take a dtype, the reductions, and the others."""
    usable = [
        operator
        for operator in operators()
        if not operator.lapack
        and not any(word in operator.name for word in _MEANINGLESS)
        and (dtype is None or dtype in operator.dtypes())
    ]
    elementwise = tuple(operator for operator in usable if operator.elementwise)
    reductions = tuple(operator for operator in usable if operator.reduction)
    others = tuple(operator for operator in usable if not operator.elementwise and not operator.reduction)
    return tuple(group or tuple(usable) for group in (elementwise, reductions, others))
