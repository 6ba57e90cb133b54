"""Observe a call: everything a caller can see of it as facts, texts by path, to compare two runs by.

Structure, types, dtypes, strides and every bit are facts; so is which object is the same as which, and which
tensors share memory: a captured function must return the argument itself where Python does. The judge asks
how far numbers are from the truth; here the same kernels run on both sides, and only equality counts.
"""

from __future__ import annotations

import contextlib
import enum
import io
import itertools
import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from torchrepro.torch_api.pytree import tree_leaves

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice)
OPAQUE: tuple[type, ...] = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
OPAQUE += (types.ModuleType, np.dtype, np.generic)

Facts = dict[str, str]


def facts_of(roots: Mapping[str, Any]) -> Facts:
    """All facts about values by name; an object met again is told as the path where it was met first."""
    told: Facts = {}
    walk = _Walk()
    for name, value in roots.items():
        told.update(walk.facts(name, value))
    return told


def first_difference(expected: Facts, found: Facts) -> str | None:
    """The first path where they differ, with what stands there; None where they agree."""
    if "error" in found and "error" not in expected:
        return f"raised {found['error']}: {_short(found.get('error.args[0]', ''))}"
    for path, fact in expected.items():
        if path not in found:
            return f"{path}: {_short(fact)} expected, nothing found"
        if found[path] != fact:
            return f"{path}: {_short(fact)} expected, {_short(found[path])} found"
    for path, fact in found.items():
        if path not in expected:
            return f"{path}: nothing expected, {_short(fact)} found"
    return None


def _short(fact: str) -> str:
    return fact if len(fact) < 160 else f"{fact[:157]}..."


def observed_call(
    call: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    more: Callable[[], Mapping[str, Any]] = dict,
) -> Facts:
    """One call: the result or the error, arguments and their gradients after it, output, modes, generators.

    `more` gives what else is observed, after the call.
    """
    kwargs = dict(kwargs or {})
    outcome: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome["result"] = call(*args, **kwargs)
        except Exception as error:
            outcome["error"] = error
        try:
            _backward(outcome.get("result"))
        except RuntimeError as error:  # a change in place may have taken away what a gradient needs
            outcome["backward"] = type(error).__name__
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
    )
    return facts_of(
        {
            "argument": tuple(args),
            "keyword": kwargs,
            "printed": printed.getvalue(),
            "modes": modes,
            "random": (random.getstate()[1][-1], int(torch.get_rng_state().sum())),
            **more(),
            **outcome,
        }
    )


def _backward(result: Any) -> None:
    """Train on whatever of a result can be trained on; the same weights each time."""
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    wanted = [tensor for tensor in tensors if tensor.requires_grad and tensor.grad_fn is not None]
    if wanted:
        weights = [torch.linspace(1, 2, max(tensor.numel(), 1)).reshape(tensor.shape) for tensor in wanted]
        torch.autograd.backward(
            wanted, [weight.to(tensor) for weight, tensor in zip(weights, wanted, strict=True)]
        )


class _Walk:
    def __init__(self) -> None:
        self._objects: dict[int, str] = {}
        self._memory: dict[tuple[int, int], str] = {}
        self._alive: list[Any] = []

    def facts(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, PLAIN):
            yield path, f"{type(value).__name__} {value!r}"
            return
        if isinstance(value, OPAQUE):
            yield path, repr(value)
            return
        if not isinstance(value, (tuple, frozenset, types.MethodType, types.BuiltinFunctionType)):
            if id(value) in self._objects:
                yield path, f"the same object as {self._objects[id(value)]}"
                return
            self._objects[id(value)] = path
            self._alive.append(value)
        if isinstance(value, torch.Tensor):
            yield from self._tensor(path, value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield from self._array(path, value)
        else:
            yield from self._object(path, value)

    def _tensor(self, path: str, value: torch.Tensor) -> Iterator[tuple[str, str]]:
        try:
            grad = "grad" if value.requires_grad else "no grad"
            leaf = "leaf" if value.is_leaf else "computed"
        except RuntimeError as error:
            # A view made without gradients whose base was changed with them may not be asked anything.
            yield path, str(error)
            return
        kind = type(value).__name__
        yield path, f"{kind} {value.dtype} {tuple(value.shape)} {value.stride()} {value.device} {grad} {leaf}"
        plain = value.detach().resolve_conj().resolve_neg()
        yield f"{path}.values", f"{plain.tolist()!r}"
        if plain.numel():
            yield from self._place(path, value.untyped_storage())
        if value.is_leaf and value.grad is not None:
            yield from self.facts(f"{path}.grad", value.grad)

    def _array(self, path: str, value: np.ndarray) -> Iterator[tuple[str, str]]:
        flags = "writeable" if value.flags.writeable else "read-only"
        both = zip(value.shape, value.strides, strict=True)
        steps = [stride for size, stride in both if size > 1 and value.size]  # others are never taken
        yield path, f"{type(value).__name__} {value.dtype} {value.shape} {steps} {flags}"
        yield f"{path}.values", f"{value.tolist()!r}"
        if value.size:
            base = value
            while isinstance(base.base, np.ndarray):
                base = base.base
            inside = base.base if isinstance(base.base, torch.Tensor) else None
            yield from self._place(path, base if inside is None else inside.untyped_storage())

    def _place(self, path: str, memory: Any) -> Iterator[tuple[str, str]]:
        """Whether the same memory was met before; of an array, that of the array it is a view of."""
        if isinstance(memory, np.ndarray):
            start, end = np.lib.array_utils.byte_bounds(memory)
        else:
            start, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes()
        for (other, last), known in self._memory.items():
            if start < last and other < end:
                yield f"{path}.memory", f"shared with {known}"
                return
        self._memory[start, end] = path

    def _object(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        yield path, type(value).__qualname__
        if isinstance(value, (list, tuple, deque)):
            yield f"{path}.length", str(len(value))
            for index, item in enumerate(value):
                yield from self.facts(f"{path}[{index}]", item)
        elif isinstance(value, (set, frozenset)):
            for index, item in enumerate(sorted(value, key=repr)):
                yield from self.facts(f"{path}{{{index}}}", item)
        elif isinstance(value, Mapping):
            yield f"{path}.keys", repr([key if isinstance(key, (*PLAIN, tuple)) else ... for key in value])
            for index, item in enumerate(value.values()):
                yield from self.facts(f"{path}.values()[{index}]", item)
        elif isinstance(value, types.MethodType):
            yield from self.facts(f"{path}.self", value.__self__)
            yield from self.facts(f"{path}.function", value.__func__)
            return
        elif isinstance(value, types.FunctionType):
            yield f"{path}.name", value.__qualname__
            yield from self.facts(f"{path}.defaults", (value.__defaults__, value.__kwdefaults__))
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield from self.facts(f"{path}.{name}", _contents(cell))
            return
        elif isinstance(value, (type, types.BuiltinFunctionType)):
            yield f"{path}.name", value.__qualname__
            return
        elif isinstance(value, Iterator):
            yield from self.facts(f"{path}.rest", list(itertools.islice(value, 20)))
            return
        elif isinstance(value, BaseException):
            yield from self.facts(f"{path}.args", value.args)
            return
        if isinstance(value, nn.Module):
            for name, item in [*value.named_parameters(), *value.named_buffers()]:
                yield from self.facts(f"{path}.{name}", item)
        for name, item in sorted(_attributes(value).items()):
            yield from self.facts(f"{path}.{name}", item)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "nothing"


def _attributes(value: Any) -> dict[str, Any]:
    """What an object consists of besides what it contains; a module's tables are told elsewhere."""
    names = {name: item for name, item in getattr(value, "__dict__", {}).items() if isinstance(name, str)}
    for kind in type(value).__mro__:
        for name in [slots] if isinstance(slots := vars(kind).get("__slots__", ()), str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                names[name] = getattr(value, name)
    if isinstance(value, nn.Module):
        return {name: item for name, item in names.items() if not name.startswith("_")}
    return names
