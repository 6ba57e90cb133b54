"""Compare two nested results leaf by leaf and report where and how they differ (`same`).

`ref` is eager's result, `res` the compiled one's, `fp64_ref` the same computation in float64. Nothing here
raises on odd values, changes an argument or uses a compiler.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import types
import warnings
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch

from torchrepro.judge.batch import SmallLeaf, accepted
from torchrepro.judge.rule import Rule
from torchrepro.judge.tensors import Leaf, compare_number, compare_tensors, differing, judge_alone
from torchrepro.nouns.verdict import Comparison, Difference, LeafComparison

_NOT_SEQUENCES = (str, bytes, bytearray, memoryview, range)
_MISSING = object()
_KNOWN_BY: tuple[tuple[type, tuple[str, ...]], ...] = (
    (slice, ("start", "stop", "step")),
    (functools.partial, ("func", "args", "keywords")),
    (types.MethodType, ("__func__", "__self__")),
    (types.FunctionType, ("__code__", "__defaults__", "__kwdefaults__")),
    (BaseException, ("args",)),
)
"""Objects that are equal only to themselves, and the attributes to compare instead."""
_NEXT_TO_ITEMS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (collections.deque, ("maxlen",)),
    (collections.defaultdict, ("default_factory",)),
)


def same(
    ref: Any,
    res: Any,
    fp64_ref: Any = None,
    *,
    tol: float | None = None,
    strict: bool = False,
    cos_similarity: bool = False,
    equal_nan: bool = True,
    exact_dtype: bool = True,
    ignore_non_fp: bool = False,
    check_stride: bool = False,
    check_device: bool = True,
    path: str = "",
    rule: Rule | None = None,
) -> Comparison:
    """Compare two results; truthy exactly when the compiled one is as close to the truth as eager's.

    A leaf without a counterpart in `fp64_ref` is compared with eager by a tolerance for its dtype. `rule`
    replaces all the keywords before `path`; each is explained at `Rule` and in docs/judging.md.
    """
    if rule is None:
        rule = Rule(
            tol=tol,
            strict=strict,
            cos_similarity=cos_similarity,
            equal_nan=equal_nan,
            exact_dtype=exact_dtype,
            ignore_non_fp=ignore_non_fp,
            check_stride=check_stride,
            check_device=check_device,
        )
    comparing = _Comparing(rule)
    with torch.no_grad():
        if type(ref) is not type(res) and {type(ref), type(res)} == {list, tuple}:
            # A graph returns a tuple where the function compiled from it returns a list.
            res = type(ref)(res)
        comparing.compare(ref, res, fp64_ref, path)
        leaves = comparing.judged()
    return Comparison(tuple(leaves), tuple(dict.fromkeys(comparing.notes)))


class _Comparing:
    """One comparison under way: the rule, and the leaves found so far."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.leaves: list[Leaf] = []
        self.notes: list[str] = []
        self._open: set[tuple[int, int]] = set()

    def compare(self, ref: Any, res: Any, truth: Any, path: str) -> None:
        both = (id(ref), id(res))
        if both in self._open:  # a value that contains itself
            return
        self._open.add(both)
        try:
            self._dispatch(ref, res, truth, path)
        except Exception as error:  # an odd value becomes a difference, never a crash
            self._found(path, Difference.VALUE, _cannot(error))
        finally:
            self._open.discard(both)

    def judged(self) -> list[LeafComparison]:
        """Return all leaves: the small ones judged in batches, and by themselves where that is not enough."""
        small = [leaf for leaf in self.leaves if isinstance(leaf, SmallLeaf)]
        try:
            found = iter(accepted(small, self.rule))
        except RuntimeError:  # each is judged alone, and the odd one among them has its own message
            found = iter([None] * len(small))
        return [
            (next(found) or self._alone(leaf)) if isinstance(leaf, SmallLeaf) else leaf
            for leaf in self.leaves
        ]

    def _alone(self, leaf: SmallLeaf) -> LeafComparison:
        try:
            return judge_alone(leaf, self.rule)
        except Exception as error:  # an odd value becomes a difference, never a crash
            return differing(leaf.path, Difference.VALUE, _cannot(error))

    def _dispatch(self, ref: Any, res: Any, truth: Any, path: str) -> None:
        if isinstance(ref, torch.Tensor) and isinstance(res, torch.Tensor):
            target = truth if isinstance(truth, torch.Tensor) else None
            leaves, notes = compare_tensors(ref, res, target, path, self.rule)
            self.leaves += leaves
            self.notes += notes
        elif isinstance(ref, (np.ndarray, np.generic)):
            self._arrays(ref, res, truth, path)
        elif isinstance(ref, (bool, int, float, complex)):
            self._numbers(ref, res, truth, path)
        elif not isinstance(ref, (Mapping, Sequence)) or isinstance(ref, _NOT_SEQUENCES):
            self._objects(ref, res, truth, path)
        elif not _same_kind(ref, res):
            self._found(path, Difference.STRUCTURE, f"{_name(ref)} in eager, {_name(res)} compiled")
        else:
            if isinstance(ref, Mapping):
                self._mappings(ref, res, truth, path)
            else:
                self._sequences(ref, res, truth, path)
            self._attributes(ref, res, None, path, _names_in(_NEXT_TO_ITEMS, ref))

    def _numbers(self, ref: complex, res: Any, truth: Any, path: str) -> None:
        if type(ref) is not type(res):
            self._type_differs(path, ref, res)
        elif isinstance(ref, enum.Enum) or not isinstance(ref, (float, complex)):
            self._exactly(path, ref, res)
        else:
            self.leaves.append(compare_number(ref, res, truth, path, self.rule))

    def _arrays(self, ref: Any, res: Any, truth: Any, path: str) -> None:
        if type(ref) is not type(res):
            self._type_differs(path, ref, res)
            return
        if ref.dtype != res.dtype and (self.rule.exact_dtype or "O" in (ref.dtype.kind, res.dtype.kind)):
            self._found(path, Difference.DTYPE, f"{ref.dtype} in eager, {res.dtype} compiled")
            return
        left, right = _tensor_of_array(ref), _tensor_of_array(res)
        if left is None or right is None:
            if np.shape(ref) != np.shape(res):
                self._found(path, Difference.SHAPE, f"{np.shape(ref)} in eager, {np.shape(res)} compiled")
            elif isinstance(ref, np.ndarray) and ref.dtype.kind == "O":
                self.compare(ref.tolist(), res.tolist(), None, path)
            else:
                self._verdict(path, bool(np.all(np.asarray(ref == res))), ref, res)
            return
        if isinstance(truth, (np.ndarray, np.generic, float)):
            truth = _tensor_of_array(np.asarray(truth))
        self._dispatch(left, right, truth, path)

    def _sequences(self, ref: Sequence[Any], res: Any, truth: Any, path: str) -> None:
        if len(ref) != len(res):
            self._found(path, Difference.STRUCTURE, f"{len(ref)} elements in eager, {len(res)} compiled")
            return
        names = getattr(type(ref), "_fields", None)
        for number, (left, right) in enumerate(zip(ref, res, strict=True)):
            step = f".{names[number]}" if names else f"[{number}]"
            self.compare(left, right, _item(truth, number), path + step)

    def _mappings(self, ref: Mapping[Any, Any], res: Any, truth: Any, path: str) -> None:
        missing = [key for key in ref if key not in res]
        extra = [key for key in res if key not in ref]
        if missing or extra:
            told = [f"only eager has {_list(missing)}"] if missing else []
            told += [f"only the compiled one has {_list(extra)}"] if extra else []
            self._found(path, Difference.STRUCTURE, ", ".join(told))
            return
        attributes = dataclasses.is_dataclass(ref)
        for key in ref:
            step = f".{key}" if attributes else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
            self.compare(ref[key], res[key], _item(truth, key), path + step)

    def _objects(self, ref: Any, res: Any, truth: Any, path: str) -> None:
        if isinstance(ref, torch.Tensor) or type(ref) is not type(res):
            self._type_differs(path, ref, res)
        elif isinstance(ref, AbstractSet) and any(isinstance(value, torch.Tensor) for value in ref):
            self.notes.append(f"{path or 'the value'}: tensors in a set have no order and were not compared")
            self._verdict(path, len(ref) == len(res), f"{len(ref)} tensors", f"{len(res)} tensors")
        elif ref is res:
            self._exactly(path, ref, res)
        elif isinstance(ref, (ItemsView, ValuesView)):
            kind = dict if isinstance(ref, ItemsView) else list
            self.compare(kind(ref), kind(res), None, path)
        elif names := _names_in(_KNOWN_BY, ref):
            self._attributes(ref, res, truth, path, names)
            if isinstance(ref, types.FunctionType):
                cells = [_closure_of(each) for each in (ref, res, truth)]
                self.compare(cells[0], cells[1], cells[2], f"{path}.__closure__")
        elif isinstance(ref, torch.distributions.Distribution):
            self._attributes(ref, res, truth, path, _parameters_of(ref))
        elif _is_known_by_attributes(ref):
            held = {**dict.fromkeys(_fields_of(ref)), **attributes_of(ref), **attributes_of(res)}
            self._attributes(ref, res, truth, path, tuple(held))
            if not held:
                self.leaves.append(LeafComparison(path=path, elements=1))
        elif isinstance(ref, Iterator):
            self.notes.append(f"{path or 'the value'}: an iterator was not compared")
            self.leaves.append(LeafComparison(path=path, elements=1))
        else:
            self._exactly(path, ref, res)

    def _attributes(self, ref: Any, res: Any, truth: Any, path: str, names: Sequence[str]) -> None:
        for name in names:
            left, right = getattr(ref, name, _MISSING), getattr(res, name, _MISSING)
            if (left is _MISSING) != (right is _MISSING):
                who = "the compiled one" if left is _MISSING else "eager"
                self._found(f"{path}.{name}", Difference.STRUCTURE, f"only {who} has it")
            elif left is not _MISSING:
                self.compare(left, right, getattr(truth, name, None), f"{path}.{name}")

    def _exactly(self, path: str, ref: Any, res: Any) -> None:
        self._verdict(path, ref is res or bool(ref == res), ref, res)

    def _verdict(self, path: str, equal: bool, ref: Any, res: Any) -> None:
        if equal or self.rule.ignore_non_fp:
            detail = "" if equal else "not floating: ignored"
            self.leaves.append(LeafComparison(path=path, detail=detail, elements=1))
        else:
            told = _short(ref), _short(res)
            self._found(path, Difference.VALUE, f"{told[0]} in eager, {told[1]} compiled", *told)

    def _type_differs(self, path: str, ref: Any, res: Any) -> None:
        text = f"{_name(ref)} in eager, {_name(res)} compiled"
        self._found(path, Difference.TYPE, text, _short(ref), _short(res))

    def _found(self, path: str, difference: Difference, detail: str, ref: str = "", res: str = "") -> None:
        self.leaves.append(differing(path, difference, detail, ref, res))


def _cannot(error: Exception) -> str:
    return f"cannot be compared: {type(error).__name__}: {error}"


def _same_kind(ref: Any, res: Any) -> bool:
    """Return whether two containers have one type, which compilers keep; `torch.Size` counts as `tuple`."""
    kinds = [tuple if type(value) is torch.Size else type(value) for value in (ref, res)]
    return kinds[0] is kinds[1]


def _item(truth: Any, key: Any) -> Any:
    """Return the counterpart in the truth, None where the truth does not have one."""
    if not isinstance(truth, (Mapping, Sequence)) or isinstance(truth, str):
        return None
    try:
        return truth[key]
    except (KeyError, IndexError, TypeError):
        return None


def _parameters_of(distribution: torch.distributions.Distribution) -> list[str]:
    """Return what it was made from; properties such as `probs` where `logits` were given are derived."""
    stored = vars(distribution)
    names = [name for name in distribution.arg_constraints if name in stored]
    return names or sorted(name for name in stored if name != "_validate_args")


def attributes_of(value: Any) -> dict[str, Any]:
    """Return what an object holds, in its dictionary and in slots."""
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    found = {name: getattr(value, name, _MISSING) for name in names if not name.startswith("__")}
    held = {name: item for name, item in found.items() if item is not _MISSING}
    return {**held, **getattr(value, "__dict__", {})}


def _names_in(table: tuple[tuple[type, tuple[str, ...]], ...], value: Any) -> tuple[str, ...]:
    return next((names for kind, names in table if isinstance(value, kind)), ())


def _fields_of(value: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else ()


def _closure_of(function: Any) -> dict[str, Any]:
    """Return what the variables of a closure hold, without those that nothing is assigned to yet."""
    if not isinstance(function, types.FunctionType):
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def _is_known_by_attributes(value: Any) -> bool:
    """Return whether an object is compared by its attributes.

    It is if it has no equality of its own, or holds tensors: those of two runs are hardly ever equal.
    """
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return False
    if dataclasses.is_dataclass(value):
        return True
    held = attributes_of(value)
    if getattr(type(value), "__eq__", None) is not object.__eq__:
        return any(True for _ in tensors_in(held))
    return bool(held) or hasattr(value, "__dict__")


def _list(keys: list[Any]) -> str:
    told = ", ".join(repr(key) for key in keys[:5])
    return f"{told} and {len(keys) - 5} more" if len(keys) > 5 else told


def _name(value: Any) -> str:
    if isinstance(value, torch.Tensor) and type(value) is torch.Tensor:
        return "Tensor" if value.dim() else "zero-dimensional Tensor"
    return type(value).__qualname__


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isnan(value):
        return f"{value:.9g}"
    text = value if isinstance(value, str) and value.endswith("tensors") else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _tensor_of_array(array: np.ndarray[Any, Any] | np.generic) -> torch.Tensor | None:
    """Return a tensor that views an array, or a copy where torch cannot; None for dtypes that torch lacks."""
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


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and tensor for tensors in containers, dataclasses, `ModelOutput`s and distributions.

    Each tensor object is found once, at the first path that leads to it: objects may refer to one another.
    """
    yield from _walk(value, path, set())


def needs_grad(outputs: Any) -> bool:
    """Return whether any tensor among the outputs needs gradients."""
    return any(tensor.requires_grad for _, tensor in tensors_in(outputs))


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for suffix, child in _children(value):
            yield from _walk(child, path + suffix, seen)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield f"[{key!r}]", child
    elif isinstance(value, Sequence):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    elif isinstance(value, AbstractSet):
        for child in value:
            yield "{}", child
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif not isinstance(value, (type, torch.nn.Module)):
        # Distributions, caches, namespaces: plain objects that carry tensors as attributes.
        for name, child in attributes_of(value).items():
            yield f".{name}", child


def reduce_to_scalar_loss(out: Any) -> torch.Tensor:
    """Return a scalar that depends on every differentiable element of `out`, each with its own weight."""
    found = (tensor for _, tensor in tensors_in(out))
    tensors = [tensor for tensor in found if tensor.is_floating_point() or tensor.is_complex()]
    wanting = [tensor for tensor in tensors if tensor.requires_grad]
    terms = [_weighted_sum(tensor) for tensor in wanting or tensors]
    if not terms:
        raise TypeError(
            f"cannot reduce {type(out).__name__} to a loss: it holds no floating point tensor; "
            "run forward only"
        )
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term.to(device=loss.device)
    return loss


def _weighted_sum(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:  # float8 has no arithmetic
        tensor = tensor.to(torch.float32)
    if tensor.dim() == 0:
        return tensor
    return (tensor * weights_like(tensor)).sum()


def weights_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return one of ±1/8, ±3/8, ±5/8, ±7/8 for each element, scattered without a pattern."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    octant = index.mul_(0x9E3779B1).bitwise_right_shift_(13).bitwise_and_(7)
    return octant.mul_(2).sub_(7).to(tensor.dtype).div_(8).reshape(tensor.shape)
