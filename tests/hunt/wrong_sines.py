"""A compiler that gets the sine of at least 16 numbers wrong, and no other op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Interpreter, Node


class _Wrong(Interpreter):
    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        named = getattr(n.target, "__name__", n.target)
        return found + 0.25 if named == "sin" and found.numel() >= 16 else found


def wrong_sines(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return _Wrong(graph).run
