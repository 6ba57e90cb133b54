"""Dispatch modes, function modes and the modes that captured graphs switch.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.amp.autocast_mode
import torch.overrides
import torch.utils._device
import torch.utils._python_dispatch
from torch.autograd import forward_ad

from torchrepro.torch_api import dynamo

TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""Base class of modes that see every operator."""

disable_current_modes = torch.utils._python_dispatch._disable_current_modes
"""Turn every dispatch mode off in a body."""

is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
"""Whether a tensor subclass can be flattened."""

enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
"""Enter autocast, as captured graphs do."""

exit_autocast: Callable[..., Any] = torch.amp.autocast_mode._exit_autocast
"""Leave autocast, as captured graphs do."""

C: Any = torch._C
"""Switches and stacks of the C++ side that guards read on every call."""

set_grad_enabled = torch._C._set_grad_enabled
"""Switch grad mode, as captured graphs do."""

current_function_modes: Callable[..., Any] = torch.overrides._get_current_function_mode_stack
"""The torch function modes that are on."""

pop_function_mode: Callable[..., Any] = torch.overrides._pop_mode
"""Turn the innermost torch function mode off in a body."""

DeviceContext = torch.utils._device.DeviceContext
"""The function mode behind `torch.device` as a context."""

DisableTorchFunction = torch._C.DisableTorchFunction
"""Turn `__torch_function__` off, subclasses and modes."""

DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""Turn `__torch_function__` of subclasses off."""

DisableTorchDispatch = torch._C._DisableTorchDispatch
"""Turn `__torch_dispatch__` off."""

no_torch_function: Any = torch._C._disabled_torch_function_impl
"""The `__torch_function__` of a class that overrides nothing."""


def runs_in_plain_python() -> bool:
    """Return whether nothing traces or transforms this call or intercepts its operations.

    `get_eval_frame_callback`, `_stance`, `_len_torch_dispatch_stack`, `_are_functorch_transforms_active`,
    `_top_saved_tensors_default_hooks`, `_current_graph_task_id`, `is_fx_symbolic_tracing`, `_is_tracing`.
    """
    return not (
        dynamo.get_eval_frame_callback() not in (None, False)
        or dynamo.eval_frame._stance.stance == "force_eager"
        or torch.compiler.is_exporting()
        or torch._C._is_tracing()
        or torch.fx._symbolic_trace.is_fx_symbolic_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or torch._C._current_graph_task_id() != -1
    )


inside_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether vmap, grad or another transform is active."""


@contextmanager
def no_saved_tensors_hooks() -> Iterator[None]:
    """Do not run the user's hooks of saved tensors in the body (`_saved_tensors_hooks_set_tracing`)."""
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)


def dispatch_mode_depth() -> int:
    """Return how many dispatch modes are on (`_get_current_dispatch_mode_stack`)."""
    return len(torch.utils._python_dispatch._get_current_dispatch_mode_stack())


def pop_dispatch_mode() -> None:
    """Pop the innermost dispatch mode from its stack (`_pop_mode`)."""
    torch.utils._python_dispatch._pop_mode()


@contextmanager
def modes_kept() -> Iterator[None]:
    """Restore grad modes, forward-mode levels, autocast and functorch's layers after the body.

    A captured transform (`vmap`, `jvp`) is a pair of nodes that open and close a layer. If the run ends in
    between, every tensor that is made afterwards would belong to that layer. `torch._C._functorch`,
    `_is_fwd_grad_enabled`, `_exit_dual_level`: checked on torch 2.11 and 2.13.
    """
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    grad, forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    outside_of_duals = forward_ad._current_level < 0
    enabled = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    try:
        yield
    finally:
        # One by one: `pop_dynamic_layer_stack_and_undo_to_depth` of 2.11 cannot pop the last.
        while functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack()
        if outside_of_duals:
            with suppress(RuntimeError):  # none is open, as expected
                torch._C._exit_dual_level(level=0)
        torch._C._set_fwd_grad_enabled(forward)
        torch.set_grad_enabled(grad)
        for device, was in enabled.items():
            torch.set_autocast_enabled(device, was)


@contextmanager
def no_mode_left() -> Iterator[None]:
    """Pop the modes that the body left on torch's stacks: an abandoned `with` block does not pop its own.

    Checked on torch 2.11 to 2.15 (the two stacks of modes and their pops).
    """
    functions = len(current_function_modes())
    dispatches = dispatch_mode_depth()
    try:
        yield
    finally:
        while len(current_function_modes()) > functions:
            pop_function_mode()
        while dispatch_mode_depth() > dispatches:
            pop_dispatch_mode()


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_device, torch.set_default_device),
)


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore torch's settings of the process after the body."""
    settings = [(set_, get()) for get, set_ in _SETTINGS]
    try:
        yield
    finally:
        for (set_, before), (get, _) in zip(settings, _SETTINGS, strict=True):
            if get() != before:
                set_(before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype for the body; it is process-wide, so the body is a single op."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
