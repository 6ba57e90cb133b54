"""Effect tokens: outputs of a graph that only keep effects in order, and that no compiler has to return."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.node import Node


def without_tokens(graph: torch.fx.GraphModule, outputs: Any) -> Any:
    """The outputs of a run with None in place of tokens. Inductor returns none, whatever eager passed on."""
    returned = graph.graph.output_node().args[0]
    if not isinstance(returned, tuple | list) or not isinstance(outputs, tuple | list):
        return outputs
    if not any(map(_is_token, returned)) or len(returned) != len(outputs):
        return outputs
    return type(outputs)(
        None if _is_token(node) else value for node, value in zip(returned, outputs, strict=True)
    )


def _is_token(output: Any) -> bool:
    """Whether this is the first result of `with_effects`. Checked on torch 2.11 to 2.15."""
    from torch._higher_order_ops.effects import with_effects

    match output:
        case Node(target=operator.getitem, args=(Node(target=target), 0)):
            return target is with_effects
    return False
