"""Live values as expressions: data is written out, code is referred to, the rest is named and refused."""

from __future__ import annotations

import collections
import enum
import functools
import math
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchrepro.nouns.errors import CannotSerialise, class_path
from torchrepro.torch_api.modules import own_state
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from torchrepro.user_code.closure.writer import ClosureWriter

_LARGEST_IN_TEXT = 64
"""Elements. A larger tensor makes no text that anybody reads, and is kept next to it."""
_DEPTH = 32
SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...))
_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    type,
    OpOverload,
    OpOverloadPacket,
    HigherOrderOperator,
)


class ValueWriter:
    """Writes expressions; a list, dict or object that is met again is referred to, so that it stays one."""

    def __init__(self, closure: ClosureWriter) -> None:
        self._closure = closure
        self._known: dict[int, str] = {}
        self._alive: list[Any] = []  # an id is valid only while its object lives
        self._open: set[int] = set()
        self._parts: dict[int, tuple[Any, str]] = {}
        """Parts of what is being written: the expression that finds each is valid once that is defined."""
        self._shared: set[int] = set()
        """Parts that were met again before: each gets a line of its own."""
        self._postponed: list[tuple[str, str, Any]] = []

    def remember(self, value: Any, expression: str) -> None:
        """Write this very object as the given expression from now on."""
        if not isinstance(value, SCALARS):
            self._known.setdefault(id(value), expression)
            self._alive.append(value)

    def knows(self, value: Any) -> bool:
        """Return whether this very object was written before."""
        return id(value) in self._known

    def write(self, value: Any, where: str, place: str | None = None) -> str:
        """Write a value. `where` names it in an error; `place` is the expression that finds it afterwards."""
        if self._closure.is_code(value):
            return self._closure.refer(value)
        if id(value) in self._known:
            return self._known[id(value)]
        if id(value) in self._open or len(self._open) > _DEPTH:
            raise _refused(value, where, "it contains itself, or is nested too deeply")
        if isinstance(value, SCALARS):
            return self._scalar(value)
        if id(value) in self._parts:
            self._shared.add(id(value))
            raise _MetAgain
        is_named = place is not None and place.isidentifier()
        if not is_named and (
            id(value) in self._shared or (isinstance(value, torch.nn.Module) and place is None)
        ):
            return self._closure.hoist(
                type(value).__name__.lower(), lambda name: self.write(value, name, name)
            )
        text = self._written_once(value, where, place)
        if is_named:
            self.remember(value, str(place))
            for key, (part, found) in list(self._parts.items()):
                if found.startswith((f"{place}.", f"{place}[")):
                    self.remember(part, found)
                    del self._parts[key]
        elif place is not None and not _is_plain_tuple(value):
            self._parts[id(value)] = value, place
        return text

    def _written_once(self, value: Any, where: str, place: str | None) -> str:
        """Write a value; start over, if it is the outermost one, where a part of it is met a second time."""
        self._open.add(id(value))
        try:
            return self._written(value, where, place)
        except Exception as failure:
            if len(self._open) > 1:
                raise
            self._parts.clear()
            if not isinstance(failure, _MetAgain):
                raise
        finally:
            self._open.discard(id(value))
        return self._written_once(value, where, place)

    def _scalar(self, value: Any) -> str:
        if isinstance(value, enum.Enum):
            return f"{self._closure.refer(type(value))}[{value.name!r}]"
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if type(value) is complex:
            return f"complex({self._scalar(value.real)}, {self._scalar(value.imag)})"
        return "..." if value is ... else repr(value)

    def _written(self, value: Any, where: str, place: str | None) -> str:
        if isinstance(value, _TORCH_CONSTANTS):
            return f"{self._module('torch')}.{str(value).removeprefix('torch.')}"
        if isinstance(value, enum.Enum):
            return self._scalar(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if isinstance(value, torch.nn.Module):
            return self._torch_module(value, place or where)
        if isinstance(value, types.MethodType):
            return f"{self.write(value.__self__, where)}.{value.__name__}"
        if isinstance(value, np.ndarray) and value.dtype != object and value.size <= _LARGEST_IN_TEXT:
            items = self.write(value.tolist(), where)
            return f"{self._module('numpy')}.array({items}, dtype={str(value.dtype)!r})"
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return f"{self._closure.refer(type(value))}._make([{self._items(value, where, place)}])"
        return (
            self._container(value, where, place)
            or self._reduced(value, where)
            or self._object(value, where, place)
        )

    def _module(self, name: str) -> str:
        return self._closure.text.import_module(name)

    def _container(self, value: Any, where: str, place: str | None) -> str | None:
        """Write a container of exactly one of the known types; None for anything else."""
        kind = type(value)
        if kind is list:
            return f"[{self._items(value, where, place)}]"
        if kind is tuple:
            return f"({self._items(value, where, place)}{',' if len(value) == 1 else ''})"
        if kind is set or kind is frozenset:
            return f"{kind.__name__}([{', '.join(sorted(self.write(item, where) for item in value))}])"
        if kind is functools.partial:
            parts = [self._items((value.func, *value.args), where, None)]
            parts += [f"{name}={self.write(item, where)}" for name, item in value.keywords.items()]
            return f"{self._module('functools')}.partial({', '.join(parts)})"
        if kind is dict:
            return self._dict(value, where, place)
        if kind in (collections.OrderedDict, collections.defaultdict):
            first = [self.write(value.default_factory, where)] if kind is collections.defaultdict else []
            parts = [*first, self._dict(value, where, place)]
            return f"{self._module('collections')}.{kind.__name__}({', '.join(parts)})"
        return None

    def _items(self, value: Any, where: str, place: str | None) -> str:
        return ", ".join(
            self.write(item, f"{where}[{index}]", None if place is None else f"{place}[{index}]")
            for index, item in enumerate(value)
        )

    def _dict(self, value: Any, where: str, place: str | None) -> str:
        pairs = []
        for key, item in value.items():
            written = self.write(key, f"a key of {where}")
            found = None if place is None else f"{place}[{written}]"
            pairs.append(f"{written}: {self.write(item, f'{where}[{written}]', found)}")
        return "{" + ", ".join(pairs) + "}"

    # Tensors and objects

    def _tensor(self, value: torch.Tensor, where: str) -> str:
        torch_ = self._module("torch")
        if not _is_small(value):
            return f"_tensor({self._closure.keep(value, where)!r})"
        # Every narrower floating value is a Python float exactly, so nothing is rounded on the way.
        items = self.write(value.detach().tolist(), where)
        text = f"{torch_}.tensor({items}, dtype={torch_}.{str(value.dtype).removeprefix('torch.')})"
        return f"{text}.requires_grad_()" if value.requires_grad else text

    def _torch_module(self, value: torch.nn.Module, place: str) -> str:
        """Write a module as its class and its parts; each module has a line of its own, the parts first."""
        class_ = self._closure.refer(type(value))
        own = torch.nn.Module().__dict__.keys() - {"training"}
        arguments = [class_, self._attributes(value, place, own)]
        for kind in ("parameters", "buffers", "modules"):
            held = getattr(own_state(value), kind)
            if held:
                parts = [f"{name!r}: {self._part(part, f'{place}_{name}')}" for name, part in held.items()]
                arguments.append(f"{kind}={{{', '.join(parts)}}}")
        if own_state(value).temporary:
            arguments.append(f"temporary={sorted(own_state(value).temporary)!r}")
        hooks = [name for name in own if "hooks" in name and vars(value).get(name)]
        if hooks:
            self._closure.note(
                f"hooks of {place} ({type(value).__name__}) are not kept: {', '.join(sorted(hooks))}"
            )
        return f"{self._closure.text.helper('_module')}({', '.join(arguments)})"

    def _part(self, part: Any, path: str) -> str:
        if isinstance(part, torch.Tensor) and not self.knows(part):
            self.remember(part, f"_tensor({self._closure.keep(part, path)!r})")
        if isinstance(part, torch.nn.Module) and not self.knows(part) and id(part) not in self._open:
            return self._closure.hoist(path, lambda name: self.write(part, name, name))
        return self.write(part, path)

    def _attributes(self, value: torch.nn.Module, place: str, own: Any) -> str:
        """Write the attributes of a module. Those that refer back to it follow when it exists."""
        pairs = []
        for name, item in vars(value).items():
            if name in own or name.startswith("_compiled_call"):
                continue
            try:
                pairs.append(f"{name!r}: {self.write(item, f'{place}.{name}')}")
            except CannotSerialise:
                self._postponed.append((place, name, item))
        return "{" + ", ".join(pairs) + "}"

    def postponed(self) -> Iterator[str]:
        """Yield lines for the postponed attributes, once nothing is half written; note the rest."""
        while self._postponed and not self._open:
            place, name, item = self._postponed.pop(0)
            try:
                yield f"{place}.{name} = {self.write(item, f'{place}.{name}')}"
            except CannotSerialise as failure:
                self._closure.note(f"the attribute {name} of {place} is not kept: {failure.fact}")

    def _reduced(self, value: Any, where: str) -> str | None:
        """Write `function(*arguments)`, for the objects that are pickled so: ranges, sizes, paths, dates."""
        kind: Any = type(value)
        if kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__:
            return None
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # an object's own method can raise anything; then it has no such form
            return None
        if not isinstance(reduced, tuple) or any(part is not None for part in reduced[2:]):
            return None
        return f"{self._closure.refer(reduced[0])}({self._items(reduced[1], where, None)})"

    def _object(self, value: Any, where: str, place: str | None) -> str:
        """Write an instance of a class that can be named, whose attributes are values themselves."""
        kind: Any = type(value)
        slots = any(getattr(base, "__slots__", ()) for base in kind.__mro__)
        if kind.__new__ is not object.__new__ or not hasattr(value, "__dict__") or slots or _holds(value):
            raise _refused(value, where, "it is neither data nor code")
        class_ = self._closure.refer(kind)
        pairs = [
            f"{name!r}: " + self.write(item, f"{where}.{name}", None if place is None else f"{place}.{name}")
            for name, item in vars(value).items()
        ]
        return f"{self._closure.text.helper('_instance')}({class_}, {{{', '.join(pairs)}}})"


class _MetAgain(Exception):
    """A part of what is being written is also another part of it."""


def _is_plain_tuple(value: Any) -> bool:
    """Return whether a value is a tuple of scalars, whose identity does not matter."""
    return type(value) is tuple and all(isinstance(item, SCALARS) for item in value)


def _refused(value: Any, where: str, why: str) -> CannotSerialise:
    return CannotSerialise(
        f"{where} is a {class_path(type(value))} that cannot be written as source: {why}",
        next_step="pass it as an argument of the call",
    )


def _holds(value: Any) -> bool:
    """Return whether an object is more than its attributes: a file or a lock refuses to be pickled."""
    try:
        value.__reduce_ex__(2)
    except TypeError:
        return True
    return False


def _is_small(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a line of numbers that shares its memory with no other."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and tensor.dim() == 1
        and tensor.is_leaf
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
        and tensor.numel() <= _LARGEST_IN_TEXT
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        and (tensor.dtype.itemsize > 1 or not tensor.dtype.is_floating_point)
    )
