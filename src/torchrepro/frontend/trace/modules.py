"""Modules and autograd functions of torch: what of a call is more than its `forward`."""

from __future__ import annotations

import torch

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call is more than `forward`. Checked on torch 2.11 to 2.15 (`_call_impl`)."""
    space = vars(module)
    if space.get("_compiled_call_impl") is not None:
        return True
    return any(space.get(name) for name in _HOOKS) or any(
        getattr(torch.nn.modules.module, name) for name in _GLOBAL_HOOKS
    )


class ForwardContext:
    """The `ctx` of an autograd function whose backward will not be asked for."""

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (False,) * inputs

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: object) -> None:
        """An input was changed in place: the graph has it."""

    def mark_non_differentiable(self, *tensors: object) -> None:
        """Nothing is differentiable here."""

    def set_materialize_grads(self, value: bool) -> None:
        """There are no gradients."""
