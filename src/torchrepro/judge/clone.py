"""Clone inputs and modules, aliasing included, so that a run can change them freely.

`dtype=torch.float64` widens floating tensors on the way: each storage goes from its own dtype to float64 in
one copy, and no narrow copy exists in between.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torchrepro.judge.tensors import inner_tensors, with_inner_tensors
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.torch_api.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    is_traceable_wrapper_subclass,
)
from torchrepro.torch_api.tensors import (
    base_without_grad,
    copy_parameter_mark,
    is_functorch_wrapped,
    is_zero_tensor,
    make_subclass,
    set_lazy_bits,
    storage_number,
    zero_tensor,
)

T = TypeVar("T")

_IMMUTABLE = (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of a clone: a real dtype, and another device where the user's lacks that dtype."""

    real: torch.dtype = torch.float64
    device: torch.device | None = None

    def widened(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that takes the place of this one; integers, booleans and quantised dtypes stay."""
        return _widened(self.real, dtype)

    def is_narrower(self, dtype: torch.dtype) -> bool:
        """Return whether values of this dtype are to be widened."""
        return _widened(self.real, dtype) is not dtype

    def moved(self, device: torch.device) -> torch.device:
        """Return the device that takes the place of this one."""
        return device if self.device is None else self.device

    def widen(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a wide copy (the tensor itself where it is wide already and on the right device)."""
        return tensor.to(device=self.moved(tensor.device), dtype=self.widened(tensor.dtype))


FLOAT64 = Precision()
FLOAT64_ON_CPU = Precision(torch.float64, torch.device("cpu"))
FLOAT32_ON_CPU = Precision(torch.float32, torch.device("cpu"))


def precision_for(device_types: Iterable[str]) -> tuple[Precision, tuple[str, ...]]:
    """Return the best precision that all these devices can give, and a note where it is not float64.

    A device without float64 (MPS) sends the whole run to the CPU, in float32.
    """
    if "mps" not in device_types:
        return FLOAT64, ()
    return FLOAT32_ON_CPU, ("mps has no float64: the reference ran in float32 on the CPU",)


@lru_cache(maxsize=256)
def _widened(real: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    # Kernels treat dtypes with two values to a byte (`float4_e2m1fn_x2`) as bits.
    if not real.is_floating_point or str(dtype).endswith("_x2"):
        return dtype
    if dtype.is_complex:
        real = real.to_complex()
    elif not dtype.is_floating_point:
        return dtype
    return real if dtype.itemsize < real.itemsize else dtype


def clone_inputs(
    values: T,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    shared: list[str] | None = None,
    keep: Collection[int] = (),
) -> T:
    """Return a deep copy of nested arguments in which tensors alias one another exactly as in the original.

    It never fails: what can be neither rebuilt nor deep-copied (a lock, an open file, a process group) is the
    same object in the copy, and a line about it is appended to `shared`. Storages with the numbers in `keep`
    are not copied: the tensors are new, their memory is the original's.
    """
    cloner = _Cloner(TensorCloner(dtype, device, keep), [] if shared is None else shared)
    made: T = cloner.clone(values, "input")
    return made


def clone_module(
    module: torch.nn.Module, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.nn.Module:
    """Return a deep copy with parameters and buffers of its own; tied ones stay tied, hooks are kept."""
    cloner = _Cloner(TensorCloner(dtype, device), [])
    try:
        return cloner.clone_module(module)
    except Exception as exc:
        culprit = _uncopyable_attribute(module)
        raise CannotSerialise(
            f"{type(module).__name__} cannot be copied: {culprit or 'its'} deep copy raises"
            f" {type(exc).__name__}: {exc}",
            next_step="give that object a __deepcopy__, or pass a function that builds the model",
        ) from exc


class _Cloner:
    """One cloning: the clone of an object met before is taken from the memo, as in `copy.deepcopy`."""

    def __init__(self, tensors: TensorCloner, shared: list[str]) -> None:
        self._tensors = tensors
        self._shared = shared
        self._memo: dict[int, Any] = {}

    def clone(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, _IMMUTABLE):
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        made = self._made(value, path)
        self._memo[id(value)] = made
        # deepcopy's own convention: keeps the original alive, so that its id is not given to another object.
        self._memo.setdefault(id(self._memo), []).append(value)
        return made

    def _made(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensors.clone(value)
        if isinstance(value, torch.Generator):
            made = torch.Generator(device=value.device)
            return made.set_state(value.get_state())
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.copy(order="K")
        if isinstance(value, torch.nn.Module):
            return self._or_shared(lambda: self.clone_module(value), value, path)
        if isinstance(value, (list, tuple, dict, set)):
            return self._container(value, path)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value, path)
        return self._or_shared(lambda: self._deepcopied(value), value, path)

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is list:
            made: list[Any] = []
            self._memo[id(value)] = made
            made.extend(self.clone(item, f"{path}[{i}]") for i, item in enumerate(value))
            return made
        if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_make")):
            items = [self.clone(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return tuple(items) if kind is tuple else kind._make(items)
        if kind in (dict, OrderedDict, defaultdict):
            table: Any = defaultdict(value.default_factory) if kind is defaultdict else kind()
            self._memo[id(value)] = table
            table.update(
                {self.clone(key, path): self.clone(item, f"{path}[{key!r}]") for key, item in value.items()}
            )
            return table
        return self._or_shared(lambda: self._deepcopied(value), value, path)

    def _fields(self, value: Any, path: str) -> Any:
        """Copy a dataclass or `ModelOutput` without calling its constructor, which may compute."""
        if isinstance(value, dict) or hasattr(type(value), "__deepcopy__"):
            return self._or_shared(lambda: self._deepcopied(value), value, path)
        made = object.__new__(type(value))
        self._memo[id(value)] = made
        names = [field.name for field in dataclasses.fields(value)]
        names += [name for name in getattr(value, "__dict__", {}) if name not in names]
        for name in names:
            if hasattr(value, name):
                object.__setattr__(made, name, self.clone(getattr(value, name), f"{path}.{name}"))
        return made

    def clone_module(self, module: torch.nn.Module) -> torch.nn.Module:
        for tensor in [*module.parameters(), *module.buffers()]:
            self._memo.setdefault(id(tensor), self._tensors.clone(tensor))
        made: torch.nn.Module = self._deepcopied(module)
        return made

    def _deepcopied(self, value: Any) -> Any:
        with _CloneTensorsInside(self._tensors):
            return copy.deepcopy(value, self._memo)

    def _or_shared(self, attempt: Callable[[], Any], value: Any, path: str) -> Any:
        try:
            return attempt()
        except Exception as exc:  # an object's own __deepcopy__ can raise anything
            self._shared.append(
                f"{path} ({type(value).__name__}) is shared with the original: {type(exc).__name__}: {exc}"
            )
            return value


class _CloneTensorsInside(TorchFunctionMode):
    """During `copy.deepcopy`, tensors are cloned our way: aliasing kept, non-leaves allowed, widened.

    Parameters copy themselves through `self.data.clone()`, which is seen here as well.
    """

    def __init__(self, tensors: TensorCloner) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self._tensors.clone(tensor)
                memo.setdefault(id(memo), []).append(tensor)
            return memo[id(tensor)]
        if func is torch.Tensor.clone:
            return self._tensors.clone(args[0].detach())
        return func(*args, **(kwargs or {}))


def _uncopyable_attribute(module: torch.nn.Module) -> str:
    """Return the path of the first attribute that cannot be deep-copied by itself; empty if there is none."""
    children = {id(child) for child in module.modules()}
    for prefix, child in module.named_modules():
        for name, value in vars(child).items():
            if name.startswith("_") and name in torch.nn.Module().__dict__:
                continue
            if isinstance(value, torch.Tensor) or id(value) in children:
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f"'{prefix}.{name}' ({type(value).__name__}):".replace("'.", "'")
    return ""


class TensorCloner:
    """One cloning: the same tensor gives the same clone, and windows on one storage stay so.

    A storage seen under two dtypes stays one storage unless one of them is widened. Without a dtype nothing
    is widened. The memory of storages in `keep` stays in use.
    """

    def __init__(
        self,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        keep: Collection[int] = (),
    ) -> None:
        self._precision = Precision(dtype or torch.uint8, device)  # nothing is narrower than a byte
        self._keep = keep
        self._clones: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rows: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the clone of this tensor. The original is neither written to, detached nor waited for."""
        known = self._clones.get(id(tensor))
        if known is None:
            known = (tensor, self._cloned(tensor))
            self._clones[id(tensor)] = known
        return known[1]

    def has_storage_of(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor on the same memory was widened before."""
        return bool(self._rows) and is_plain(tensor) and self._key(tensor) in self._rows

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the cloned storage, without history; for `no_grad`."""
        if is_plain(tensor):
            with DisableTorchDispatch():
                return self._window(tensor)
        wide, detached = self._precision, tensor.detach()
        if is_zero_tensor(tensor):
            dtype, device = wide.widened(tensor.dtype), wide.moved(tensor.device)
            return zero_tensor(tuple(tensor.size()), dtype=dtype, device=device)
        takes_apart: Any = is_traceable_wrapper_subclass
        wrapper: bool = takes_apart(tensor) and not is_functorch_wrapped(tensor)
        changes = wide.is_narrower(tensor.dtype) or wide.moved(tensor.device) != tensor.device
        if changes and not tensor.is_quantized:
            widened = wide.widen(detached)
            if not wrapper or type(widened) is type(tensor):
                return widened  # a quantised weight would become a plain tensor: its parts are widened below
        if wrapper:
            inner, _ = inner_tensors(tensor)
            return with_inner_tensors(tensor, {name: self.clone(part) for name, part in inner.items()})
        return detached.clone()

    def _cloned(self, tensor: torch.Tensor) -> torch.Tensor:
        with DisableTorchFunction(), torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if is_lazy(tensor):
                lazy: torch.Tensor = copy.deepcopy(tensor)
                return lazy
            made = self._same_class(self.value_of(tensor), tensor)
            if not is_plain(tensor) or tensor.is_leaf:
                wanted = tensor.requires_grad and tensor.is_leaf
                if made.requires_grad != wanted:
                    made.requires_grad_(wanted)
        if tensor.requires_grad and not tensor.is_leaf:
            with torch.enable_grad():
                leaf = torch.empty_like(made, requires_grad=True)
                made = _Rooted.apply(leaf, made)  # type: ignore[no-untyped-call]
        if tensor.is_leaf and tensor.grad is not None:
            made.grad = self.clone(tensor.grad)
        return made

    def _window(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a window on the cloned storage, which is widened, or copied byte for byte.

        Where the original is a view to autograd, without gradients, so is the clone: a compiler that is given
        several views of a tensor, and writes to one, goes by that.
        """
        base, place = base_without_grad(tensor), (tensor.size(), tensor.stride(), tensor.storage_offset())
        if base is not None and is_plain(base) and tensor.untyped_storage().nbytes():
            with torch.enable_grad():  # a view made without grad mode could not be written to in place later
                made = self.clone(base).as_strided(*place)
            set_lazy_bits(made, conj=tensor.is_conj(), neg=tensor.is_neg())
            return made
        dtype, key = self._precision.widened(tensor.dtype), self._key(tensor)
        if key not in self._rows:
            source = window(tensor.untyped_storage(), key[1])
            row = self._precision.widen(source)
            if row is source and key[0] not in self._keep:
                row = torch.empty_like(source).copy_(source)
            self._rows[key] = (source, row)
        row = self._rows[key][1]
        made = torch.empty(0, dtype=dtype, device=row.device)
        made.set_(row.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        set_lazy_bits(made, conj=tensor.is_conj(), neg=tensor.is_neg())
        return made

    def _key(self, tensor: torch.Tensor) -> tuple[int, torch.dtype]:
        """Return a key for a storage, and for its real dtype where windows of that dtype are widened."""
        number = storage_number(tensor.untyped_storage())
        if not self._precision.is_narrower(tensor.dtype):
            return number, torch.uint8
        return number, tensor.dtype.to_real() if tensor.dtype.is_complex else tensor.dtype

    def _same_class(self, value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value in the tensor's class; clone attributes that are tensors and share the others."""
        if type(value) is not type(tensor):
            value = make_subclass(type(tensor), value)
        copy_parameter_mark(tensor, value)
        if is_plain(tensor):
            for name, item in getattr(tensor, "__dict__", {}).items():
                value.__dict__[name] = self.clone(item) if isinstance(item, torch.Tensor) else item
        return value


class _Rooted(torch.autograd.Function):
    """Gives a tensor the history of an identity on a new leaf, in place: its storage stays the one it has.

    A view of the leaf could not be written to in place, and a copy would alias nothing.
    """

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a parameter or buffer of a lazy module, which has no shape yet."""
    return isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a strided window on a storage of its own dtype and nothing more."""
    return (
        tensor.layout is torch.strided
        and not has_its_own_dispatch(type(tensor))
        and not tensor.is_quantized
        and not tensor.is_nested
        and not is_zero_tensor(tensor)
        and not is_functorch_wrapped(tensor)
    )


def has_its_own_dispatch(kind: type) -> bool:
    """Return whether this class of tensors takes ops apart itself (`__torch_dispatch__`), as wrappers do."""
    return bool(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)  # type: ignore[attr-defined]


def window(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """Return a whole storage as one row of this dtype."""
    row = torch.empty(0, dtype=dtype, device=storage.device)
    return row.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
