"""Arrays of NumPy without values: a fake tensor in the array's memory, and a sample, an array of its form.

NumPy computes on the samples, torch's emulation of NumPy on copies of them and on the fakes. So type, dtype,
layout and sharing of each result are NumPy's own; where the emulation gives another, or other values,
`NotEmulated` is raised. Each name was checked on torch 2.13 with NumPy 2.4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchrepro.torch_api import numpy_emulation as emulation
from torchrepro.torch_api.modes import DisableTorchFunction, disable_current_modes
from torchrepro.torch_api.tensors import storage_number, version_of

_LARGEST = 1 << 24
"""Elements of an array beyond which no sample is made."""
_LONGEST = 1 << 10
"""Elements of an array of constants beyond which it is not written into the graph."""
_PLAIN = (bool, int, float, str, type(None), type(...))


class NotEmulated(Exception):
    """Torch cannot compute this as NumPy does; or (`raises`) NumPy itself raises an error."""

    def __init__(self, text: str, *, raises: bool = False) -> None:
        super().__init__(text)
        self.raises = raises


@dataclass(slots=True, eq=False)
class Memory:
    """What all views of an array share."""

    of_tensor: bool = False
    """Whether a tensor of the program has it too: a write by NumPy would not count as one of the tensor."""


Make = Callable[[torch.Tensor, Any, Memory], Any]
"""The class of arrays that the caller uses, or what chooses it."""


class Array:
    """An array or a number of NumPy's."""

    __slots__ = ("_fake", "_like", "_memory")

    def __init__(self, fake: torch.Tensor, like: Any, memory: Memory) -> None:
        self._fake, self._like, self._memory = fake, like, memory


def fake_of(array: Array) -> torch.Tensor:
    """Return the fake tensor in the memory of an array."""
    return array._fake


def is_scalar(array: Array) -> bool:
    """Return whether it is a number of NumPy's, and no array."""
    return type(array._like) is not np.ndarray


def is_writeable(array: Array) -> bool:
    return bool(array._like.flags.writeable)


def tensor_in(array: Array) -> torch.Tensor:
    """Return a tensor in the memory of an array, as `torch.from_numpy` does; of a number, a copy."""
    if is_scalar(array):
        return array._fake.clone()
    array._memory.of_tensor = True
    fake = array._fake.detach()
    wanted = tuple(stride // array._like.itemsize for stride in array._like.strides)
    with DisableTorchFunction():
        same = fake.stride() == wanted  # NumPy's are others where a size is 1
    return fake if same else fake.as_strided(fake.shape, wanted)


def array_in(kind: Make, fake: torch.Tensor, *, scalar: bool = False, of_tensor: bool = False) -> Any:
    """Return the array in the memory of a tensor."""
    with DisableTorchFunction():
        form = tuple(fake.shape), fake.stride(), fake.dtype
        taken = fake.device.type == "cpu" and not fake.is_neg() and fake.numel() <= _LARGEST
    if fake.requires_grad:
        raise NotEmulated("an array of a tensor that requires grad", raises=True)
    if not taken or not emulation.SUPPORTED or fake.dtype not in emulation.DTYPES.values():
        raise NotEmulated(f"an array of a tensor of {fake.dtype} on {fake.device}")
    with _on_samples():
        like = emulation.sample(*form)
    return kind(fake, like[()] if scalar else like, Memory(of_tensor))


def compute(
    kind: Make,
    name: str,
    real: Any,
    emulated: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Return what a function of NumPy's gives, having called what emulates it on the fakes."""
    given = [*args, *kwargs.values()]
    arrays = [each for each in emulation.leaves(given) if isinstance(each, Array)]
    if name == "setitem" and any(_memory(arrays[0]) == _memory(other) for other in arrays[1:]):
        if len(arrays) == 2 and _is_part(*args):
            return None  # `a[1:] += 1` assigns what it has changed in place
        raise NotEmulated("an array is assigned to a part of itself")

    def call(function: Any, array: Callable[[Array], Any], constant: Callable[[Any], Any]) -> Any:
        values = [_converted(value, array, constant) for value in given]
        return function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

    def emulate(wrapped: Mapping[int, Any]) -> Any:
        try:
            return call(emulated, lambda array: wrapped[id(array)], _constant)
        except Exception as error:
            raise _differs(name, f"{type(error).__name__}: {error}") from None

    with _on_samples():
        likes = [array._like for array in arrays]
        copies = [emulation.wrap(torch.from_numpy(np.array(like, order="K"))) for like in likes]
        try:
            expected = call(real, lambda array: array._like, lambda value: value)
        except NotEmulated:
            raise
        except Exception as error:
            raise NotEmulated(f"numpy.{name}: {type(error).__name__}: {error}", raises=True) from None
        if arrays:
            by_array = len(args) > 1 and isinstance(args[1], Array)
            operands = [_converted(value, lambda array: array._like, lambda value: value) for value in given]
            unsafe = emulation.why_unsafe(name, operands, expected, by_array=by_array)
            if unsafe is not None:
                raise _differs(name, unsafe)
            seen = emulate({id(array): copy for array, copy in zip(arrays, copies, strict=True)})
            if not emulation.agrees(expected, seen) or not emulation.agrees(likes, copies):
                raise _differs(name, "another dtype, shape or value")
    if not arrays:
        return _each(expected, lambda value: _of_constants(kind, name, value))
    versions = list(map(_version, arrays))
    result = emulate({id(array): emulation.wrap(array._fake) for array in arrays})
    changed = [array for array, old in zip(arrays, versions, strict=True) if _version(array) != old]
    if any(array._memory.of_tensor for array in changed):
        raise NotEmulated(f"{name} writes to an array that shares its memory with a tensor")
    found = iter(list(emulation.leaves(result)))
    return _each(expected, lambda like: _result(kind, name, like, next(found), arrays))


@contextmanager
def _on_samples() -> Iterator[None]:
    """Compute with values, outside of all modes, and without warnings about them."""
    with (
        DisableTorchFunction(),
        disable_current_modes(),
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)([_each(item, function) for item in value])
    return function(value)


def _converted(value: Any, array: Callable[[Array], Any], constant: Callable[[Any], Any]) -> Any:
    """Return an argument with arrays and constants replaced."""
    kind = type(value)
    if issubclass(kind, Array):
        return array(value)
    if kind in (list, tuple):
        items = [_converted(item, array, constant) for item in value]
        tensors = map(emulation.unwrap, items)  # which the emulation stacks: of its arrays it makes lists
        return kind([item if tensor is None else tensor for item, tensor in zip(items, tensors, strict=True)])
    if kind is torch.Size:
        return tuple(value)
    if kind is slice and {type(value.start), type(value.stop), type(value.step)} <= {int, type(None)}:
        return value
    if kind in _PLAIN or issubclass(kind, np.dtype | type | np.generic):
        return constant(value)
    raise NotEmulated(f"NumPy is given a {'tensor' if issubclass(kind, torch.Tensor) else kind.__qualname__}")


def _constant(value: Any) -> Any:
    """Return a number or dtype of NumPy's as the emulation takes it."""
    if issubclass(type(value), np.generic):
        return emulation.wrap(_literal(np.asarray(value)))
    return emulation.as_dtype(value)


def _literal(value: Any) -> torch.Tensor:
    """Return a tensor with the values of an array of constants."""
    dtype = emulation.DTYPES.get(value.dtype)
    if dtype is None:
        raise NotEmulated(f"an array of {value.dtype}")
    if value.size and value.tobytes() == value.size * value.flat[0].tobytes():
        return torch.full(value.shape, value.flat[0].item(), dtype=dtype, device="cpu")
    if value.size > _LONGEST:
        raise NotEmulated(f"an array of {value.size} constants")
    return torch.tensor(value.tolist(), dtype=dtype, device="cpu").reshape(value.shape)


def _differs(name: str, why: str) -> NotEmulated:
    return NotEmulated(f"torch does not compute numpy.{name} as NumPy does: {why}")


def _memory(array: Array) -> int:
    with DisableTorchFunction():
        return storage_number(array._fake.untyped_storage())


def _version(array: Array) -> int:
    with DisableTorchFunction():
        return version_of(array._fake)


def _is_part(array: Array, key: Any, value: Any) -> bool:
    """Return whether an array is assigned to just the part that it is."""
    if not isinstance(value, Array) or is_scalar(value):
        return False
    places = [np.asarray(each).__array_interface__ for each in (array._like[key], value._like)]
    return all(places[0][fact] == places[1][fact] for fact in ("data", "shape", "strides", "typestr"))


def _of_constants(kind: Make, name: str, value: Any) -> Any:
    """Return what NumPy gave for constants alone: an array becomes part of the graph."""
    if type(value) is not np.ndarray:
        return value
    return _result(kind, name, value, emulation.wrap(_literal(value)), [])


def _result(kind: Make, name: str, like: Any, found: Any, arrays: list[Array]) -> Any:
    """Return a result in memory of its own, or in that of an operand, as NumPy's is."""
    fake = emulation.unwrap(found)
    if fake is None:
        return like
    for array in arrays:
        if like is array._like:
            return array
    made = kind(fake, like, Memory())
    scalar = is_scalar(made)
    shared = [] if scalar else [each for each in arrays if np.may_share_memory(each._like, like)]
    aliases = any(_memory(each) == _memory(made) for each in arrays)
    if shared and not aliases:
        raise _differs(name, "its result shares no memory with its argument")
    if aliases and not shared:
        fake = fake.clone()
    wanted = () if scalar else tuple(stride // like.itemsize for stride in like.strides)
    with DisableTorchFunction():
        form, strides = tuple(fake.shape), fake.stride()
        same = fake.device.type == "cpu" and emulation.DTYPES.get(like.dtype) is fake.dtype
    if not same or form != like.shape or fake.requires_grad:
        raise _differs(name, f"{fake.dtype} of {form} in place of {like.dtype} of {like.shape}")
    steps = zip(form, strides, wanted, strict=True)
    if like.size and any(size > 1 and stride != step for size, stride, step in steps):
        if shared or min(wanted) < 0:
            raise _differs(name, f"strides {strides} in place of {wanted}")
        fake = torch.empty_strided(form, wanted, dtype=fake.dtype, device="cpu").copy_(fake)
    return kind(fake, like, shared[0]._memory if shared else Memory())
