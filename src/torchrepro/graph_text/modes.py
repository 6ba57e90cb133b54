"""Modes of this process that the nodes of a graph switch, put back after a run that ended midway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch.autograd import forward_ad


@contextmanager
def modes_kept() -> Iterator[None]:
    """Grad modes, forward-mode levels, autocast and functorch's layers as they were.

    A captured transform (`vmap`, `jvp`) is a pair of nodes that open and close a layer. Where the run ends in
    between, every tensor that is made afterwards would belong to that layer.

    Checked on torch 2.11 and 2.13 (`torch._C._functorch`, `_is_fwd_grad_enabled`, `_exit_dual_level`).
    """
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    grad, forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    outside_of_duals = forward_ad._current_level < 0
    enabled = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    try:
        yield
    finally:
        # One by one: `pop_dynamic_layer_stack_and_undo_to_depth` of 2.11 cannot take off the last.
        while functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack()
        if outside_of_duals:
            with suppress(RuntimeError):  # none is open, as it should be
                torch._C._exit_dual_level(level=0)
        torch._C._set_fwd_grad_enabled(forward)
        torch.set_grad_enabled(grad)
        for device, was in enabled.items():
            torch.set_autocast_enabled(device, was)
