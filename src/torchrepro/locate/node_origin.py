"""What a node computes and where it comes from, in the words of an answer."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.fx import Node

from torchrepro.graph_text.source_lines import module_of, source_of
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket


def op_of(node: Node) -> str:
    """`aten.erf.default`, `torch.nn.functional.gelu`, `.add_`, `operator.mul`; of a module its path."""
    target: Any = node.target
    if node.op == "call_method":
        return f".{target}"
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return str(target)
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", "") or ""
    # Python's own operators live in `_operator`; torch's in C++ have no module that could be imported.
    module = {"_operator": "operator", "torch._C._nn": "torch.nn.functional"}.get(module, module)
    return f"{module}.{name}" if module else f"torch.{name}"


class Whereabouts(NamedTuple):
    """As `GuiltyOp` and `Growth` have it."""

    node: str
    op: str
    module: str
    source: str


def whereabouts(node: Node) -> Whereabouts:
    return Whereabouts(node.name, op_of(node), module_of(node), source_of(node) or "")
