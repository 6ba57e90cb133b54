"""Whether two graphs are equal node for node, and if not, where: in words."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import Node

from torchrepro.graph_text.annotations import expression_of
from torchrepro.graph_text.resolver import numpy_target
from torchrepro.graph_text.triton_kernels import ConstantsPlace, calls_kernel, with_places


def first_difference(a: GraphModule, b: GraphModule) -> str | None:
    """The first thing in which two graphs differ; None if they are equal, constants bit for bit."""
    return _Comparer().modules(a, b, "")


class _Comparer:
    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def modules(self, a: GraphModule, b: GraphModule, where: str) -> str | None:
        if (id(a), id(b)) in self._seen:
            return None
        self._seen.add((id(a), id(b)))
        nodes_a, nodes_b = list(a.graph.nodes), list(b.graph.nodes)
        for node_a, node_b in zip(nodes_a, nodes_b, strict=False):
            difference = self._nodes(node_a, node_b, a, b)
            if difference:
                return f"{where}{difference}"
        if len(nodes_a) != len(nodes_b):
            return f"{where}{len(nodes_a)} nodes against {len(nodes_b)}"
        return None

    def _nodes(self, a: Node, b: Node, module_a: GraphModule, module_b: GraphModule) -> str | None:
        for field in ("name", "op"):
            if getattr(a, field) != getattr(b, field):
                return f"{a.name}: {field} {getattr(a, field)!r} against {getattr(b, field)!r}"
        if a.target is not b.target and a.target != b.target and not _same_numpy(a.target, b.target):
            return f"{a.name}: target {a.target} against {b.target}"
        difference = _values(a.args, b.args, "args") or _values(_kwargs(a), _kwargs(b), "kwargs")
        if difference:
            return f"{a.name}: {difference}"
        if a.op in ("get_attr", "call_module"):
            return self._attributes(
                _attribute(module_a, str(a.target)), _attribute(module_b, str(b.target)), a
            )
        return None

    def _attributes(self, a: Any, b: Any, node: Node) -> str | None:
        where = f"{node.target}"
        if isinstance(a, GraphModule) and isinstance(b, GraphModule):
            return self.modules(a, b, f"{where}.")
        if isinstance(a, torch.nn.Module) and isinstance(b, torch.nn.Module):
            if type(a) is not type(b) or a.extra_repr() != b.extra_repr() or a.training != b.training:
                return f"{where}: module {a} against {b}"
            return _values(dict(a.state_dict(keep_vars=True)), dict(b.state_dict(keep_vars=True)), where)
        return _values(a, b, where)


def _kwargs(node: Node) -> dict[str, Any]:
    """Keyword arguments; the kernels and constants themselves where a node has their places in a table."""
    return with_places(node) if calls_kernel(node) else dict(node.kwargs)


def _same_numpy(a: Any, b: Any) -> bool:
    return numpy_target(a) is not None and numpy_target(a) == numpy_target(b)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _values(a: Any, b: Any, where: str) -> str | None:
    """The first difference of two nested values."""
    if isinstance(a, Node) and isinstance(b, Node):
        return None if a.name == b.name else f"{where} is the node {a.name} against {b.name}"
    if type(a) is not type(b):
        return f"{where} is a {type(a).__name__} ({a!r}) against a {type(b).__name__} ({b!r})"
    if isinstance(a, torch.Tensor):
        return _tensors(a, b, where)
    if isinstance(a, tuple | list):
        if len(a) != len(b):
            return f"{where} has {len(a)} items against {len(b)}"
        pairs = enumerate(zip(a, b, strict=True))
        return next((found for i, (x, y) in pairs if (found := _values(x, y, f"{where}[{i}]"))), None)
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where} has the keys {list(a)} against {list(b)}"
        return next((found for key in a if (found := _values(a[key], b[key], f"{where}[{key!r}]"))), None)
    if isinstance(a, ConstantsPlace):
        return _values(dict(a.values), dict(b.values), where)
    if isinstance(a, slice):
        return _values((a.start, a.stop, a.step), (b.start, b.stop, b.step), where)
    return None if _equal(a, b) else f"{where} is {a!r} against {b!r}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return _equal(a.real, b.real) and _equal(a.imag, b.imag)
    if isinstance(a, torch.SymInt | torch.SymFloat | torch.SymBool):
        return expression_of(a) == expression_of(b)
    if isinstance(a, torch.Generator):
        return a is b or (a.device == b.device and torch.equal(a.get_state(), b.get_state()))
    return a is b or bool(a == b)


def _tensors(a: torch.Tensor, b: torch.Tensor, where: str) -> str | None:
    if a is b:
        return None
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        if getattr(a, name) != getattr(b, name):
            return f"{where} has {name} {getattr(a, name)} against {getattr(b, name)}"
    if a.layout is torch.strided and a.stride() != b.stride():
        return f"{where} has stride {a.stride()} against {b.stride()}"
    return None if _bytes_equal(a, b) else f"{where} holds other values"


def _bytes_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise, so that NaN equals itself and -0.0 is not 0.0."""
    if a.layout is not torch.strided or a.is_quantized:
        return bool(torch.equal(a, b))
    if a.device.type == "meta" or a.numel() == 0:
        return True
    first, second = (
        tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
        for tensor in (a, b)
    )
    return bool(torch.equal(first, second))
