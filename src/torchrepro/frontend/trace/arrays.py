"""Arrays of NumPy in a trace: what is done to them is recorded as the functions of torch that emulate it.

A call that torch does not compute as NumPy does is a graph break; so is what needs the values in an array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind, Unsupported
from torchrepro.torch_api import numpy_arrays
from torchrepro.torch_api import numpy_emulation as emulation

_TEXTS = {"__repr__", "__str__", "__format__", "__reduce__", "__reduce_ex__", "__sizeof__"}


class TracedArray(numpy_arrays.Array):
    """An array or a number of NumPy's. Everything that no graph can do raises `Break`."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._like)

    def __getattr__(self, name: str) -> Any:
        if name in emulation.METHODS:
            return ArrayMethod(self, name)
        if name in emulation.FACTS:
            return getattr(self._like, name)
        if name in emulation.ATTRIBUTES:
            return _compute(name, operator.attrgetter(name), (self,))
        getattr(self._like, name)  # raises where NumPy's have none
        raise Unsupported(f"{name} of an array needs the array itself")

    def __len__(self) -> int:
        return len(self._like)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int and self._like.ndim:
            self._like[key]  # where it raises, an iteration ends
        return _compute("getitem", operator.getitem, (self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        _compute("setitem", operator.setitem, (self, key, value))

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.__array_function__(function if method == "__call__" else None, (), args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = emulation_of(function)
        if found is None:
            raise Unsupported("a function of NumPy that torch does not emulate")
        return found(*args, **kwargs)

    def __hash__(self) -> int:
        if not numpy_arrays.is_scalar(self):
            raise TypeError("unhashable type: 'numpy.ndarray'")
        raise Break(BreakKind.DATA, "hash() needs the value of a number of NumPy's")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", function)
        raise Unsupported(f"{name} of an array", "make a tensor of it by torch.from_numpy")


class TracedNumber(TracedArray):
    """An array without dimensions, or a number: nothing to iterate over."""

    __slots__ = ()

    def __iter__(self) -> Any:
        raise Break(BreakKind.RAISES, "iteration over a number of NumPy's")


def _made(fake: torch.Tensor, like: Any, memory: numpy_arrays.Memory) -> TracedArray:
    return (TracedArray if like.ndim else TracedNumber)(fake, like, memory)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayMethod:
    """A method of an array, bound to it."""

    array: TracedArray
    name: str


def array_in(fake: torch.Tensor, **facts: bool) -> TracedArray:
    """Return the array in the memory of a tensor."""
    return _or_break(partial(numpy_arrays.array_in, _made, fake, **facts))  # type: ignore[no-any-return]


def emulation_of(function: Any) -> Callable[..., Any] | None:
    """Return what is called in place of a function of NumPy's or a method of an array; None for others."""
    if type(function) is ArrayMethod:
        return partial(_call_method, function)
    name = emulation.emulated_name(function)
    return None if name is None else partial(_call_function, function, name)


def _call_method(method: ArrayMethod, *args: Any, **kwargs: Any) -> Any:
    def named(owner: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, method.name)(*args, **kwargs)

    return _compute(method.name, named, (method.array, *args), kwargs)


def _call_function(function: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    if name in emulation.CONVERSIONS and args and issubclass(type(args[0]), torch.Tensor):
        args = (array_in(args[0], of_tensor=True), *args[1:])
    return _compute(name, function, args, kwargs, emulation.emulation_of(name))


def _compute(name: str, real: Any, args: Any, kwargs: Any = None, emulated: Any = None) -> Any:
    compute = numpy_arrays.compute
    return _or_break(partial(compute, _made, name, real, emulated or real, args, kwargs or {}))


def _or_break(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except numpy_arrays.NotEmulated as error:
        kind = BreakKind.RAISES if error.raises else BreakKind.UNSUPPORTED
        raise Break(kind, str(error)) from None


def _operator(name: str, *, swap: bool = False, in_place: bool = False) -> Callable[..., Any]:
    def method(self: TracedArray, *other: Any) -> Any:
        changed = in_place and not numpy_arrays.is_scalar(self)  # numbers are immutable
        function = getattr(operator, f"__{'i' if changed else ''}{name}__")
        return _compute(name, function, (*other, self) if swap else (self, *other))

    return method


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: TracedArray, *args: Any) -> Any:
        raise Break(BreakKind.DATA, f"{name.strip('_')} needs the values of an array")

    return refuse


for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]:
    setattr(TracedArray, f"__{_name}__", _operator(_name))
    setattr(TracedArray, f"__r{_name}__", _operator(_name, swap=True))
    setattr(TracedArray, f"__i{_name}__", _operator(_name, in_place=True))
for _name in ["lt", "le", "eq", "ne", "gt", "ge", "neg", "pos", "invert", "abs"]:
    setattr(TracedArray, f"__{_name}__", _operator(_name))
for _name in {*dir(np.ndarray), *dir(np.float64)} - {*dir(type), *vars(TracedArray), "__iter__"} | _TEXTS:
    if _name.startswith("__") and callable(getattr(np.float64, _name, None) or getattr(np.ndarray, _name)):
        setattr(TracedArray, _name, _refusing(_name))
