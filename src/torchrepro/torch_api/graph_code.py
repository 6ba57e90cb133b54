"""The code that FX writes for a graph. Checked on torch 2.11 to 2.15 (`_get_qualified_name`)."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.fx.node import _get_qualified_name

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


class _Names:
    """A module as the code of one graph sees it: what it has read or was given stays as it is."""

    def __init__(self, module: Any) -> None:
        self.__dict__["__wrapped__"] = module

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(self.__wrapped__, name)
        return found


def bind_functions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Bind torch's functions in the code of a graph, where FX writes names that a program may rebind."""
    root = _Names(torch)
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, _FUNCTIONS):
            first, *path = _get_qualified_name(node.target).split(".")
            if first == "torch":
                place = root
                for part in path[:-1]:
                    held = getattr(place, part)
                    place.__dict__[part] = held if isinstance(held, _Names) else _Names(held)
                    place = place.__dict__[part]
                place.__dict__[path[-1]] = node.target
    code: Any = type(module).forward
    code.__globals__["torch"] = root
    return module
