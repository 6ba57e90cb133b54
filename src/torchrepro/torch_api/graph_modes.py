"""Modes: the state of the thread that changes what operators compute, and how it gets into the graph.

Context managers run natively while user code is traced; nothing intercepts them. The state is stored with
each recorded node, and the finished graph gets the statements that change it between nodes. So a graph has
only those it needs, and always ends in the state in which it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state
from torchrepro.torch_api.modes import enter_autocast, exit_autocast, set_grad_enabled, settings_restored


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
