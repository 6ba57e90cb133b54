"""Dispatch modes, function modes and the modes that captured graphs switch.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.amp.autocast_mode
import torch.overrides
import torch.utils._device
import torch.utils._python_dispatch

TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""Base class of modes that see every operator."""

disable_current_modes = torch.utils._python_dispatch._disable_current_modes
"""Turn every dispatch mode off for a while."""

is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
"""Whether a tensor subclass can be flattened."""

enter_autocast: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
"""Enter autocast, as captured graphs do."""

exit_autocast: Callable[..., Any] = torch.amp.autocast_mode._exit_autocast
"""Leave autocast, as captured graphs do."""

set_grad_enabled = torch._C._set_grad_enabled
"""Switch grad mode, as captured graphs do."""

current_function_modes: Callable[..., Any] = torch.overrides._get_current_function_mode_stack
"""The torch function modes that are on."""

pop_function_mode: Callable[..., Any] = torch.overrides._pop_mode
"""Turn the innermost torch function mode off for a while."""

DeviceContext = torch.utils._device.DeviceContext
"""The function mode behind `torch.device` as a context."""

DisableTorchFunction = torch._C.DisableTorchFunction
"""Turn `__torch_function__` off, subclasses and modes."""

DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""Turn `__torch_function__` of subclasses off."""

DisableTorchDispatch = torch._C._DisableTorchDispatch
"""Turn `__torch_dispatch__` off."""

function_mode_depth = torch._C._len_torch_function_stack
"""How many torch function modes are on."""
