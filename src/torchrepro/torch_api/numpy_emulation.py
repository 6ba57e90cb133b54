"""NumPy's functions as torch emulates them on tensors, and a check that torch computes what NumPy does.

Each name was checked on torch 2.13 (`torch._numpy`) with NumPy 2.4.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from torchrepro.torch_api import dynamo

_FUNCTIONS = """
    sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh arctanh exp exp2 expm1 log log2
    log10 log1p sqrt square absolute abs fabs negative positive floor ceil trunc rint round around add
    subtract multiply divide true_divide power maximum minimum hypot logaddexp equal not_equal less less_equal
    greater greater_equal logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor
    invert isnan isinf isfinite signbit copysign deg2rad rad2deg radians degrees real imag remainder mod
    floor_divide matmul dot inner outer vdot tensordot einsum trace diagonal diag tril triu kron linalg.norm
    sum prod mean std var max min amax amin argmax argmin all any cumsum cumprod ptp reshape ravel transpose
    swapaxes moveaxis rollaxis squeeze expand_dims atleast_1d atleast_2d atleast_3d concatenate stack vstack
    hstack dstack column_stack split array_split hsplit vsplit dsplit tile repeat roll where take diff
    zeros_like ones_like full_like copy array asarray ascontiguousarray clip meshgrid isclose zeros ones full
    eye identity arange linspace logspace tri shape ndim size float32 float64 int8 int16 int32 int64
    uint8 bool_ dtype fft.fftshift fft.ifftshift broadcast_to
"""
"""Without those that differ in values: `sign` (of NaN), `fmax`, `fmin` and `fmod` (signs of zeros), `sort`
and `argsort` (the order of equal elements), `empty`, all that is random; and those that give no array."""

_METHODS = """
    reshape ravel transpose swapaxes squeeze flatten copy astype sum prod mean std var max min argmax argmin
    any all cumsum cumprod clip round dot trace diagonal repeat take fill
"""
METHODS = frozenset(_METHODS.split())
ATTRIBUTES = frozenset({"T", "real", "imag"})
FACTS = frozenset({"shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"})
"""Attributes of an array that depend on no value."""
CONVERSIONS = frozenset({"array", "asarray", "ascontiguousarray", "zeros_like", "ones_like", "full_like"})
"""Functions that make an array of a tensor first."""

DTYPES = {
    np.dtype(str(dtype).removeprefix("torch.")): dtype
    for kinds in (
        (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        (torch.float32, torch.float64),
    )
    for dtype in kinds
}
_REMAINDERS = frozenset({"remainder", "mod"})
_DIVIDING = frozenset({*_REMAINDERS, "floor_divide", "power", "floordiv", "pow"})
_TOLERANCE = {"float32": 1e-3, "float64": 1e-6}
_COMPARING = frozenset({"lt", "le", "eq", "ne", "gt", "ge", "less", "less_equal", "greater", "greater_equal"})
_EQUAL = frozenset({"equal", "not_equal"})
_RAISING = frozenset({"raise", "call", "print", "log"})


SUPPORTED = int(np.__version__.partition(".")[0]) >= 2
"""Before NumPy 2 the dtype of a result depends on values."""


@functools.cache
def _by_id() -> dict[int, str]:
    found = {name: _part_of(np, name) for name in _FUNCTIONS.split()}
    return {id(function): name for name, function in found.items() if function is not None}


def _part_of(module: Any, name: str) -> Any:
    """Return what a module has under a dotted name; None where this version has nothing."""
    return functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), module)


def emulated_name(function: Any) -> str | None:
    """Return the name of a function of NumPy that torch emulates, without `numpy.`; None for another."""
    return _by_id().get(id(function)) if SUPPORTED else None


def emulation_of(name: str) -> Callable[..., Any]:
    """Return what emulates a function; where this torch has nothing, a function that raises."""
    return _part_of(dynamo.torch_numpy, name) or _missing


def _missing(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("this version of torch does not emulate it")


def wrap(tensor: torch.Tensor) -> Any:
    """Return the emulated array of a tensor."""
    return dynamo.torch_numpy.ndarray(tensor)


def unwrap(array: Any) -> torch.Tensor | None:
    """Return the tensor of an emulated array; None for another value."""
    return array.tensor if isinstance(array, dynamo.torch_numpy.ndarray) else None


def as_dtype(value: Any) -> Any:
    """Return a dtype of NumPy as the emulation takes it; any other value as it is."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dynamo.torch_numpy.dtype(np.dtype(value).name)
    return value


def errors_are_silent() -> bool:
    """Return whether NumPy does no more than warn about overflow and division by zero (`np.geterr`)."""
    return _RAISING.isdisjoint(np.geterr().values())


def tensor_of(array: Any) -> torch.Tensor | None:
    """Return the tensor in the memory of a plain array that can be written; a number of NumPy's is copied.

    None for what is no array that the emulation takes.
    """
    if issubclass(type(array), np.generic):
        array = np.array(array)
    plain = SUPPORTED and type(array) is np.ndarray and array.dtype in DTYPES and array.flags.behaved
    if not plain or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return None
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor, scalar: bool, writeable: bool) -> Any:
    """Return the array in the memory of a tensor, or the number in it as NumPy's."""
    array = tensor.numpy()
    if not writeable:
        array.flags.writeable = False
    return array[()] if scalar else array


def sample(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Return an array of that form with arbitrary values; integers are 0 and 1, to serve as indices."""
    like = torch.empty_strided(shape, stride, dtype=dtype).numpy()
    random = np.random.default_rng(0)
    values = random.standard_normal(shape) if like.dtype.kind == "f" else random.integers(0, 2, shape)
    np.copyto(like, values, casting="unsafe")
    return like


def leaves(value: Any) -> Iterator[Any]:
    """Yield what nested lists and tuples consist of."""
    if type(value) in (list, tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def agrees(expected: Any, seen: Any) -> bool:
    """Return whether the emulation gave the arrays that NumPy gave, up to rounding."""
    pairs = list(leaves(expected)), list(leaves(seen))
    return len(pairs[0]) == len(pairs[1]) and all(map(_agree, *pairs))


def _agree(expected: Any, seen: Any) -> bool:
    tensor = unwrap(seen)
    if tensor is None:
        return type(seen) is type(expected) and bool(seen == expected)
    if not isinstance(expected, np.ndarray | np.generic) or expected.dtype not in DTYPES:
        return False
    found = tensor.numpy()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    tolerance = _TOLERANCE.get(found.dtype.name, 0)
    return np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def why_unsafe(name: str, given: list[Any], result: Any, *, by_array: bool) -> str | None:
    """Return which values would make torch compute another result than NumPy; None if there are none.

    `given`: the arguments, arrays as samples. `by_array`: the second of them is an array.
    """
    operands = [each for each in leaves(given) if isinstance(each, np.ndarray | np.generic)]
    kinds = {operand.dtype.kind for operand in operands}
    if torch.is_autocast_enabled("cpu") or torch.get_float32_matmul_precision() != "highest":
        return "torch computes in a lower precision here"
    if name in _COMPARING | _EQUAL and any(_overflows(each, operands) for each in given):
        return "a number that does not fit"
    if name == "setitem" and isinstance(given[2], np.ndarray | list | tuple) and not _is_basic(given[1]):
        return "an index that occurs twice"
    for each in leaves(result):
        dtype = getattr(each, "dtype", np.dtype(bool))
        if name in _DIVIDING and dtype.kind in "iu" and by_array:
            return "a division by zero or a negative power"
        if name in _REMAINDERS and dtype.kind == "f":
            return "the sign of a zero"
        if "f" in kinds and dtype.kind in "iu" and dtype.itemsize < 4 and not name.startswith("arg"):
            return "a number that does not fit"
    written = given[0].dtype.kind if name in ("setitem", "fill") else "f"
    return "a number that does not fit" if written != "f" and "f" in kinds else None


def _overflows(number: Any, operands: list[Any]) -> bool:
    ranges = [np.iinfo(each.dtype) for each in operands if each.dtype.kind in "iu"]
    return type(number) is int and any(not kind.min <= number <= kind.max for kind in ranges)


def _is_basic(key: Any) -> bool:
    """Return whether an index names each element once."""
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in (int, slice, type(None), type(...)) for part in parts)
