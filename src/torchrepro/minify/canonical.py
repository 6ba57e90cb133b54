"""The canonical key of a candidate: equal for two that no compiler and no judge could tell apart."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import torch
from torch.fx import Graph, GraphModule

from torchrepro.bundle.graph_text import write_graph
from torchrepro.judge.leaves import tensors_in
from torchrepro.repro import Repro


def canonical_key(repro: Repro) -> str:
    """A digest of the graph without its names, of all values, and of everything around them."""
    written = write_graph(_renamed(repro.graph))
    parts: list[Any] = [
        written.text,
        [(name, _described(value)) for name, value in sorted(written.constants.items())],
        [_described(value) for value in repro.inputs],
        [[_described(value) for value in inputs] for inputs in repro.earlier],
        msgspec.to_builtins(repro.compiler),
        msgspec.to_builtins(
            {name: getattr(repro.ambient, name) for name in repro.ambient.__slots__ if name != "rng"}
        ),
        [str(symbol) for symbol in repro.symbols],
        [repro.place.value, repro.backward, repro.strict, repro.tolerance],
        [(device, _described(state)) for device, state in sorted(repro.ambient.rng.items())],
    ]
    return hashlib.sha256(msgspec.json.encode(parts, enc_hook=repr)).hexdigest()


def _renamed(module: GraphModule) -> GraphModule:
    """The same graph with names that say only where a node stands."""
    graph = Graph()
    copies: dict[Any, Any] = {}
    for number, node in enumerate(module.graph.nodes):
        copies[node] = graph.create_node(
            node.op,
            f"v{number}" if node.op == "placeholder" else node.target,
            torch.fx.map_arg(node.args, copies.__getitem__),
            torch.fx.map_arg(node.kwargs, copies.__getitem__),
            name=f"v{number}",
        )
        copies[node].meta = {key: value for key, value in node.meta.items() if key != "stack_trace"}
    return GraphModule(module, graph, class_name="Graph")


def _described(value: Any) -> Any:
    tensors = tensors_in(value)
    if not tensors:
        return repr(value)
    return [(path, _tensor(tensor)) for path, tensor in tensors]


def _tensor(tensor: torch.Tensor) -> list[Any]:
    about = [
        str(tensor.dtype),
        list(tensor.shape),
        str(tensor.device),
        tensor.requires_grad,
        str(tensor.layout),
    ]
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return [*about, repr(tensor)]
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return [*about, list(tensor.stride()), tensor.storage_offset(), hashlib.sha256(data).hexdigest()]
