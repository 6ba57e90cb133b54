"""Names that a person would give to the inputs and intermediate values of a small function."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from collections.abc import Container
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.graph_text.syntax import unused_name
from torchrepro.torch_api.ops import OpOverload, op_name, schema_of

_GENERIC = ("x", "y", "z", "a", "b", "c", "d", "e")
_RESERVED = frozenset({"torch", "F", "f", "run", "math", "eager", "compiled", "self", "model", "out", "wrap"})
_ROLES = {
    name: name
    for name in (
        *("weight", "bias", "running_mean", "running_var", "mask", "index", "indices", "target"),
        *("query", "key", "value"),
    )
} | {"attn_mask": "mask", "condition": "mask", "src": "source", "grad_output": "grad"}
"""What the authors of operators call their arguments, and what a reader would."""
_RESULTS = {
    **dict.fromkeys(("add", "sub", "mul", "div", "truediv", "iadd", "imul"), "h"),
    **dict.fromkeys(("slice", "select", "getitem"), "part"),
    **dict.fromkeys(("to", "_to_copy", "convert_element_type", "float", "int", "type"), "converted"),
    "sum": "total",
    "max": "largest",
    "min": "smallest",
    "abs": "magnitude",
    "pow": "power",
    "round": "rounded",
    "all": "every",
    "any": "some",
}
"""Names for results whose operation would hide a builtin or say nothing."""
_OF_A_MODULE = re.compile(r"(?:parameters|buffers)_(?P<name>[A-Za-z]\w*?)_*$")
_OF_AN_ARGUMENT = re.compile(r"l_(?P<name>(?!self_|args_|kwargs_|stack)[a-z]\w*?)_+$", re.IGNORECASE)


class Names:
    """Gives each value a name of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of_input(self, node: Node) -> str:
        generic = (name for name in _GENERIC if name not in self._taken)
        return self.fresh(_said_by_the_user(str(node.target)) or _role(node) or next(generic, "x"))

    def of_result(self, node: Node) -> str:
        return self.fresh(_RESULTS.get(base_name(node), base_name(node)))

    def fresh(self, wanted: str) -> str:
        """Return the name itself, or with a number where it is taken."""
        wanted = re.sub(r"\W", "_", wanted).strip("_") or "h"
        if wanted[0].isdigit():
            wanted = f"h{wanted}"
        elif keyword.iskeyword(wanted) or hasattr(builtins, wanted) or wanted in _RESERVED:
            wanted = f"{wanted}_"
        name = unused_name(wanted, self._taken, join="")
        self._taken.add(name)
        return name


def names_of_inputs(
    module: GraphModule, without: Container[Node] = (), names: Names | None = None
) -> dict[Node, str]:
    """Return a name for each input that is used and not among `without`."""
    names = names or Names()
    return {
        node: names.of_input(node)
        for node in module.graph.nodes
        if node.op == "placeholder" and node.users and node not in without
    }


def base_name(node: Node) -> str:
    """Return `add` for `aten.add.Tensor`, `operator.add` and the method `add`."""
    if not isinstance(node.target, str) and not hasattr(node.target, "__name__"):
        return "h"
    return op_name(node.target).rpartition(".")[2]


def parameter_names(target: Any) -> list[str]:
    """Return the names of a callable's positional parameters; empty where they are unknown."""
    if not isinstance(target, OpOverload):
        if not callable(target):
            return []
        try:
            return list(inspect.signature(target).parameters)
        except (ValueError, TypeError):
            # Functions in C have no signature, but an operator of the same name has a schema.
            name = getattr(target, "__name__", "")
            packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
            target = getattr(packet, "default", None)
    arguments = schema_of(target).arguments if isinstance(target, OpOverload) else ()
    return [argument.name for argument in arguments]


def _said_by_the_user(target: str) -> str:
    """Return the name that an input had in the program, where capture has kept it."""
    for pattern in (_OF_A_MODULE, _OF_AN_ARGUMENT):
        found = pattern.search(target)
        if found:
            return found["name"].lower() if found["name"].isupper() else found["name"]
    plain = target.strip("_")
    return plain if plain in _ROLES.values() or plain in _GENERIC else ""


def _role(node: Node) -> str:
    """Return the role that the first operation using a value gives it."""
    user = next(iter(node.users), None)
    if user is None or user.op != "call_function":
        return ""
    given = [*zip(parameter_names(user.target), user.args, strict=False), *user.kwargs.items()]
    return next((_ROLES.get(name, "") for name, value in given if value is node), "")
