"""Take tensors that are not plain strided arrays apart into plain tensors and numbers.

Sparse, quantised, nested, MKL-DNN and wrapper-subclass tensors have no common arithmetic, but each is fully
described by a few ordinary tensors and numbers, which are compared here and kept in bundles. Numpy arrays
become tensors that share their memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from torchrepro.torch_api.tensors import coo_parts

Parts = dict[str, Any]

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

PACKED_DTYPES = frozenset(
    getattr(torch, name)
    for name in ("float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")
    if hasattr(torch, name)
) | frozenset(
    getattr(torch, f"{sign}int{width}")
    for sign in ("", "u")
    for width in range(1, 8)
    if hasattr(torch, f"{sign}int{width}")
)
"""Dtypes compared by their bytes: bare exponents, several numbers in a byte, bits without a meaning."""

UNREADABLE_DTYPES = PACKED_DTYPES - {getattr(torch, "float8_e8m0fnu", None)}
"""Those that no operation may touch: on CUDA a conversion is a device-side assert, which ends the process's
use of the device (seen with float4_e2m1fn_x2 on torch 2.11), where a CPU raises."""


def parts_of(tensor: torch.Tensor) -> Parts | None:
    """Return the pieces of an exotic tensor by the suffix that names them in a path; None for a plain one."""
    if is_wrapper_subclass(tensor):
        return _compared_inside(tensor)
    if tensor.is_nested:
        return {f".unbind()[{number}]": piece for number, piece in enumerate(tensor.unbind())}
    if tensor.is_quantized:
        named = {f".{name}()": value for name, value in quantizer_of(tensor).items()}
        return {".qscheme()": str(tensor.qscheme()), **named, ".int_repr()": tensor.int_repr()}
    if is_sparse(tensor):
        indices, values = sparse_parts(tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor)
        return {**{f".{name}()": index for name, index in indices.items()}, ".values()": values}
    if tensor.is_mkldnn:
        return {".to_dense()": tensor.to_dense()}
    return None


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a shell around others (DTensor, jagged nested, quantised weights).

    Checked on torch 2.11 to 2.15: `__tensor_flatten__` is the protocol of `torch.compile` itself.
    """
    return type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__")


def inner_tensors(tensor: torch.Tensor) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the tensors inside a wrapper subclass by attribute, and the context to rebuild it with."""
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return {name: getattr(tensor, name) for name in names}, context


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether a tensor has one of the sparse layouts, COO or compressed."""
    return tensor.layout is torch.sparse_coo or tensor.layout in _COMPRESSED


def sparse_parts(tensor: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the index tensors of a sparse tensor by name, and its values, as they are: not coalesced."""
    if tensor.layout is torch.sparse_coo:
        indices, values = coo_parts(tensor)
        return {"indices": indices}, values
    return {name: getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]}, tensor.values()


def quantizer_of(tensor: torch.Tensor) -> Parts:
    """Return the parameters of a quantised tensor by the methods that give them; none without a quantizer."""
    try:
        scheme = tensor.qscheme()
    except RuntimeError:
        return {}  # torch.empty(..., dtype=torch.qint8): a quantised dtype without a quantizer
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        names: tuple[str, ...] = ("q_scale", "q_zero_point")
    else:
        names = ("q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points")
    return {name: getattr(tensor, name)() for name in names}


def _compared_inside(tensor: torch.Tensor) -> Parts:
    inner, context = inner_tensors(tensor)
    parts: Parts = {f".{name}": part for name, part in inner.items()}
    if isinstance(context, dict):  # jagged tensors keep cached sizes and symbolic ints here
        context = {key: value for key, value in context.items() if isinstance(value, (bool, int, str))}
        parts |= {f".{key}": value for key, value in context.items()}
    return parts


def tensor_of_array(array: np.ndarray[Any, Any] | np.generic) -> torch.Tensor | None:
    """A tensor over an array's memory, or a copy where torch cannot view it; None for dtypes torch lacks."""
    values = np.asarray(array)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if any(stride < 0 for stride in values.strides):
        values = np.ascontiguousarray(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # read-only arrays: nothing here writes to them
        try:
            return torch.from_numpy(values)
        except (TypeError, ValueError):
            return None
