"""How a call is written in a captured graph: its nodes, and the state of the thread that it ran under.

Operators are functions of `operator` (`x + 1`), attributes are `getattr`, methods are called by name, and
everything else is the function itself: the level of torch's own captured graphs, which every backend takes.
Their code names functions of torch, which `bind_functions` binds.

Context managers run natively while user code is traced; nothing intercepts them. The state (`Modes`) is
stored with each recorded node, and the finished graph gets the statements that change it between nodes. So a
graph has only those it needs, and always ends in the state in which it began.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import _get_qualified_name

from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state
from torchrepro.torch_api.modes import enter_autocast, exit_autocast, set_grad_enabled, settings_restored
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.torch_api.tensors import is_functional, is_in_transform

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def why_not_in_graph(tensor: torch.Tensor) -> str | None:
    """Return why a real tensor cannot be an input; None for an ordinary tensor, parameter or buffer.

    Checked on torch 2.11 to 2.15 (`_functorch`, `_is_functional_tensor`).
    """
    if type(tensor) not in _KINDS:
        kind = type(tensor)
        return f"a tensor of the class {kind.__module__}.{kind.__qualname__}"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_mkldnn:
        return "a tensor in the layout of oneDNN"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_quantized:
        return "a quantized tensor"
    if is_in_transform(tensor):
        return "a tensor inside a transform of torch.func"
    if is_functional(tensor):
        return "a functional tensor of a compiler"
    return None


_OWNERS = ("Tensor", "TensorBase", "_TensorBase")

_SAME = ("add", "sub", "mul", "matmul", "pow", "lt", "le", "gt", "ge", "eq", "ne")
_BINARY: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _SAME},
    "div": operator.truediv,
    "remainder": operator.mod,
    **{f"__{name}__": getattr(operator, f"__{name}__") for name in ("eq", "ne", "and", "or", "xor", "pow")},
    **{f"__{name}__": getattr(operator, name) for name in ("floordiv", "lshift", "rshift", "getitem")},
}
"""By the names under which a mode receives them: `x / y` arrives as `div`, `x == y` as `__eq__`."""
_REVERSIBLE = "sub truediv floordiv mod pow matmul lshift rshift and or xor"
_REVERSED: Mapping[str, Callable[..., Any]] = {
    "__rdiv__": operator.truediv,
    **{f"__r{name}__": getattr(operator, f"__{name}__") for name in _REVERSIBLE.split()},
}
_UNARY: Mapping[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "__neg__": operator.neg,
    "__invert__": operator.invert,
    "__pos__": operator.pos,
}


Form = tuple[str, Callable[..., Any] | str, tuple[Any, ...]]
"""`call_function` or `call_method`, the target, the arguments."""


def name_of(function: Callable[..., Any]) -> str:
    """Return its readable name: `add`, `shape` (for an attribute), `aten.relu`."""
    if isinstance(function, OpOverload | OpOverloadPacket):
        return str(function)
    name = str(getattr(function, "__name__", function))
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name


def form_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Form:
    """Return how a call is written in the graph.

    Checked on torch 2.11 to 2.15: what a `TorchFunctionMode` is handed for operators and attributes.
    """
    if isinstance(function, OpOverload | OpOverloadPacket):
        return "call_function", function, args
    name = name_of(function)
    if getattr(function, "__name__", "") == "__get__":
        return "call_function", getattr, (args[0], name)
    if str(getattr(function, "__qualname__", "")).split(".")[0] not in _OWNERS:
        return "call_function", function, args
    if not kwargs:
        if len(args) == 2 and name in _BINARY:
            return "call_function", _BINARY[name], args
        # With two tensors Python calls the left one's method, which may compute something else.
        if len(args) == 2 and name in _REVERSED and not isinstance(args[1], torch.Tensor):
            return "call_function", _REVERSED[name], (args[1], args[0])
        if len(args) == 1 and name in _UNARY:
            return "call_function", _UNARY[name], args
        if name == "__setitem__":
            return "call_function", operator.setitem, args
    return "call_method", name, args


class _Names:
    """A module as the code of one graph sees it: what it has read or was given stays as it is."""

    def __init__(self, module: Any) -> None:
        self.__dict__["__wrapped__"] = module

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(self.__wrapped__, name)
        return found


def bind_functions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Bind torch's functions in the code of a graph, where FX writes names that a program may rebind.

    Checked on torch 2.11 to 2.15 (`_get_qualified_name`).
    """
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


@dataclass(frozen=True, slots=True)
class Modes:
    """Grad mode, inference mode and mixed precision at one moment."""

    grad: bool
    inference: bool
    casts: tuple[tuple[str, bool, torch.dtype], ...]
    """Device, whether mixed precision is on for it, and its dtype."""
    cache: bool
    nesting: int
    """How many blocks of mixed precision are open; torch clears its cached casts at zero."""

    @classmethod
    def now(cls) -> Modes:
        """Read the state. Checked on torch 2.11 to 2.15 (the depth of autocast is read by changing it)."""
        nesting = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            casts=tuple(
                (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in _devices()
            ),
            cache=torch.is_autocast_cache_enabled(),
            nesting=nesting,
        )

    @property
    def on(self) -> dict[str, torch.dtype]:
        """The devices on which mixed precision changes something."""
        return {device: dtype for device, enabled, dtype in self.casts if enabled}

    def apply(self) -> None:
        """Apply these modes to this thread, except inference mode, which is bound to a guard object."""
        set_grad_enabled(self.grad)
        for device, enabled, dtype in self.casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        depth = torch.autocast_increment_nesting()
        while depth > self.nesting:
            depth = torch.autocast_decrement_nesting()
        while depth < self.nesting:
            depth = torch.autocast_increment_nesting()
        if not self.nesting:
            torch.clear_autocast_cache()


@contextmanager
def restored() -> Iterator[None]:
    """Restore torch's state and random generators after the body."""
    modes, rng = Modes.now(), capture_rng_state()
    try:
        with settings_restored():
            yield
    finally:
        modes.apply()
        # Real tensors must not hit cached casts of fakes: the cache is keyed by address.
        torch.clear_autocast_cache()
        restore_rng_state(rng)


@dataclass(frozen=True, slots=True)
class _Entered:
    """An autocast block that the graph is in. Torch caches casts until the outermost block ends."""

    node: Node
    before: dict[str, torch.dtype]
    """What was enabled around it."""
    nesting: int


def write_modes(graph: Graph, start: Modes, under: Mapping[Node, Modes]) -> None:
    """Insert the changes of state between the nodes, and restore the initial state at the end.

    They have the form of torch's own graphs, which AOTAutograd runs while it traces. Checked on torch
    2.13 (`_set_grad_enabled`, `_enter_autocast`, `_exit_autocast`).
    """
    current = start
    entered: list[_Entered] = []

    def call(target: Callable[..., Any], *args: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta["stack_trace"] = node.meta.get("stack_trace", "")
        return made

    def change(modes: Modes) -> None:
        nonlocal current
        on = current.on
        while entered and (modes == start or (on != modes.on and entered[-1].nesting >= modes.nesting)):
            left = entered.pop()
            call(exit_autocast, left.node)
            on = left.before
        for device in sorted(modes.on.keys() | on.keys()):
            dtype = modes.on.get(device)
            if dtype != on.get(device):
                values = (device, dtype or on[device], dtype is not None, modes.cache)
                entered.append(_Entered(call(enter_autocast, *values), on, modes.nesting))
                on = {**on, device: dtype} if dtype else {name: on[name] for name in on if name != device}
        if modes.grad != current.grad:
            call(set_grad_enabled, modes.grad)
        current = modes

    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.op == "output":
                change(start)
            elif node in under:
                change(under[node])


@cache
def _devices() -> tuple[str, ...]:
    return tuple(
        device for device in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(device)
    )
