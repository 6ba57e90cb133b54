"""The private names of torch that saving and rebuilding values needs, each behind one small function.

Each was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

from torchrepro.torch_api.modes import disable_current_modes, is_traceable_wrapper_subclass


@contextmanager
def plain_torch() -> Iterator[None]:
    """Run the body without the caller's dispatch modes, default device, gradient and inference mode.

    Capture happens inside the compiler, where a fake or functional mode is usually on.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"), disable_current_modes():
        yield


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a `FakeTensor`, which has no data. Checked on torch 2.11 to 2.15."""
    if type(tensor) is torch.Tensor:
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a wrapper of vmap, grad or functionalisation."""
    return is_in_transform(tensor) or is_functional(tensor)


def storage_identity(tensor: torch.Tensor) -> tuple[str, int]:
    """Return a key that is equal for tensors that share memory.

    It is the address, because two storages can share one buffer (`torch.from_numpy` twice); without memory
    (meta, fake, empty, a wrapper), torch's own storage object. `_cdata`: Checked on torch 2.11 to 2.15.
    """
    storage = tensor.untyped_storage()
    is_wrapper: Any = is_traceable_wrapper_subclass
    without = is_fake(tensor) or tensor.device.type == "meta" or is_wrapper(tensor)
    address = 0 if without else storage.data_ptr()
    return (str(storage.device), address) if address else ("object", storage._cdata)


storage_number: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""A number that is equal for two Python objects over the same storage."""


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to (`_version`); 0 for one of inference mode, without a count."""
    return 0 if tensor.is_inference() else tensor._version


def base_without_grad(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor of the same dtype of which this is a view to autograd; None if one needs gradients.

    `_base`: Checked on torch 2.11 to 2.15.
    """
    base = tensor._base
    if base is None or base.dtype is not tensor.dtype or tensor.requires_grad or base.requires_grad:
        return None
    return base


is_zero_tensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor
"""Whether a tensor is one of autograd's zeros without memory."""


def coo_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices and values of a COO tensor without coalescing (`_indices`, `_values`)."""
    return tensor._indices(), tensor._values()


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Return whether hooks run on the gradient of a tensor (`_backward_hooks`)."""
    return bool(tensor._backward_hooks)


def hint(number: Any) -> Any:
    """Return the value of a symbolic number when it was traced, without adding a guard; None if it had none.

    `node.hint`: Checked on torch 2.11 to 2.15. A nested int (the ragged size of a jagged tensor) has none.
    """
    if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number
    return getattr(number.node, "hint", None)


def expression(number: Any) -> str:
    """Return the formula of a symbolic number. `node.expr`: Checked on torch 2.11 to 2.15."""
    return str(getattr(number.node, "expr", number))


def set_lazy_bits(tensor: torch.Tensor, *, conj: bool, neg: bool) -> None:
    """Make the tensor mean the conjugate or negative of its bytes.

    Unlike `torch._conj`, which returns a view that autograd does not allow to change in place.
    `_set_conj`, `_set_neg`: Checked on torch 2.11 to 2.15.
    """
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)


zero_tensor: Callable[..., torch.Tensor] = torch._efficientzerotensor
"""Zeros without memory, as autograd makes them."""

nested_from_buffer = torch._nested_view_from_buffer
"""Make a strided nested tensor over a flat buffer, from the sizes, strides and offsets of its components."""


def nested_geometry(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sizes, strides and offsets of a strided nested tensor's components. Checked on 2.11 to 2.15."""
    anything: Any = tensor
    return (
        anything._nested_tensor_size(),
        anything._nested_tensor_strides(),
        anything._nested_tensor_storage_offsets(),
    )


def empty_quantized(dtype: torch.dtype, device: torch.device, **quantizer: Any) -> torch.Tensor:
    """Return an empty quantised tensor with this quantizer. Checked on torch 2.11 to 2.15."""
    if "scales" in quantizer:
        return torch._empty_per_channel_affine_quantized((0,), dtype=dtype, device=device, **quantizer)
    if quantizer:
        return torch._empty_affine_quantized((0,), dtype=dtype, device=device, **quantizer)
    return torch.empty(0, dtype=dtype, device=device)


is_in_transform: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor belongs to vmap, grad or another function transform."""

is_functional: Callable[[torch.Tensor], bool] = torch._is_functional_tensor
"""Whether a tensor is one of functionalisation."""


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor (`_unsafe_set_version_counter`)."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


make_subclass: Callable[..., torch.Tensor] = torch.Tensor._make_subclass
"""Return a tensor as a subclass over the same data."""


def copy_parameter_mark(tensor: torch.Tensor, copy: Any) -> None:
    """Mark the copy of a tensor subclass that is a parameter but not an `nn.Parameter` (`_is_param`)."""
    if getattr(tensor, "_is_param", False):
        copy._is_param = True


neg_view = torch._neg_view
"""Return the lazy negative of a tensor."""


module_call_impl = torch.nn.Module._call_impl
"""What a call of a module runs: hooks around `forward`."""
