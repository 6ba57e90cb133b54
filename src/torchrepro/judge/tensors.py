"""Compare two tensors of any dtype, layout and subclass: metadata first, then the values they hold.

Sparse, quantised, nested, MKL-DNN and wrapper-subclass tensors have no common arithmetic, but each is fully
described by a few ordinary tensors and numbers, which are compared here and kept in bundles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.judge.batch import EXACT, FLOATING, SmallLeaf, are_ordinary, equal_leaf, fits
from torchrepro.judge.glance import glance
from torchrepro.judge.metrics import Walk
from torchrepro.judge.rule import (
    PACKED_DTYPES,
    UNREADABLE_DTYPES,
    DtypeLimits,
    Granted,
    Rule,
    coarser,
    granted,
    judge_floating,
    precision_of,
    value_at,
)
from torchrepro.nouns.verdict import Blame, Difference, LeafComparison
from torchrepro.torch_api.modes import DisableTorchFunctionSubclass
from torchrepro.torch_api.tensors import coo_parts, is_fake, is_zero_tensor

Parts = dict[str, Any]

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

_BLOCK = 1 << 20
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Unequal:
    """How many elements differ, where most, and by how much (None where the dtype has no arithmetic)."""

    count: int
    index: tuple[int, ...] | None
    max_abs: float | None


def unequal(ref: torch.Tensor, res: torch.Tensor, *, bits: bool = False) -> Unequal:
    """Compare element by element without any conversion to floating point.

    With `bits`, floating tensors differ wherever their bits do (-0.0 is not 0.0), NaNs apart.
    """
    if _same_memory(ref, res):
        return Unequal(0, None, 0.0)
    walk = Walk.over([ref, res], _BLOCK)
    left, right = walk.arranged(ref), walk.arranged(res)
    count, worst, index = 0, -1.0, None
    for part in walk.parts:
        old, new = left[part], right[part]
        if new.device != old.device:
            new = new.to(old.device)
        differs = _unequal_elements(old, new, bits=bits)
        found = int(differs.sum())
        if not found:
            continue
        count += found
        # Beyond 2**53 the size of a difference is rounded.
        size = _magnitude(new, old).masked_fill_(~differs, -1.0).reshape(-1)
        offset = int(size.argmax())
        if float(size[offset]) > worst:
            worst, index = float(size[offset]), walk.index_of(part, offset)
    return Unequal(count, index, None if ref.dtype in UNREADABLE_DTYPES else max(worst, 0.0))


def _same_memory(ref: torch.Tensor, res: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and dtype are the same elements of one storage."""
    return (
        ref.device == res.device
        and ref.data_ptr() == res.data_ptr()
        and ref.stride() == res.stride()
        and (ref.is_conj(), ref.is_neg()) == (res.is_conj(), res.is_neg())
    )


def _unequal_elements(ref: torch.Tensor, res: torch.Tensor, *, bits: bool) -> torch.Tensor:
    if ref.is_complex():
        old, new = torch.view_as_real(ref.resolve_conj()), torch.view_as_real(res.resolve_conj())
        return _unequal_elements(old, new, bits=bits).any(-1)
    if ref.dtype is torch.bool:
        return torch.ne(ref, res)
    ref, res = ref.resolve_neg(), res.resolve_neg()
    width = _SAME_WIDTH[ref.element_size()]
    differs = torch.ne(ref.view(width), res.view(width))
    if bits and ref.is_floating_point() and bool(differs.any()):
        differs &= ~(ref.isnan() & res.isnan())
    return differs


def _magnitude(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Return the size of a difference as float64; zero where the dtype has no arithmetic."""
    if new.dtype in UNREADABLE_DTYPES:
        return torch.zeros(new.shape, dtype=torch.float64, device=new.device)
    wide = torch.complex128 if new.is_complex() else torch.float64
    return (new.to(wide) - old.to(wide)).abs().nan_to_num_(nan=float("inf"), posinf=float("inf"))


Leaf = LeafComparison | SmallLeaf
_Found = tuple[list[Leaf], list[str]]


def compare_tensors(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, path: str, rule: Rule
) -> _Found:
    """Return a leaf for a plain tensor, or one per part of an exotic one; and notes on what was left out.

    A leaf that is small is not judged yet: it waits for a batch, or for `judge_alone`.
    """
    if are_ordinary(ref, res, rule):
        if ref.requires_grad or res.requires_grad:
            ref, res = ref.detach(), res.detach()
        return [_plain(ref, res, None if truth is None else _bare(truth), path, rule)], []
    metadata = _metadata(ref, res, rule)
    if metadata is not None:
        kind, eager, compiled = metadata
        detail = f"{eager} in eager, {compiled} compiled"
        return [differing(path, kind, detail, str(eager), str(compiled), elements=_count(ref))], []
    if is_fake(ref) or ref.is_meta:
        what = "a fake tensor" if is_fake(ref) else "a meta tensor"
        text = f"{what} has no data: only shape, dtype and device were compared"
        leaf = LeafComparison(path=path, detail=text, elements=_count(ref))
        return [leaf], [f"{path or 'the value'}: {text}"]
    pieces, other = parts_of(ref), parts_of(res)
    if pieces is not None and other is not None:
        return _parts(pieces, other, None if truth is None else parts_of(truth), path, rule)
    return [_plain(_bare(ref), _bare(res), None if truth is None else _bare(truth), path, rule)], []


def compare_number(ref: complex, res: complex, truth: Any, path: str, rule: Rule) -> Leaf:
    """Compare Python floats or complex numbers as tensors of one element, with the slack of float32.

    Such a number usually comes out of a float32 tensor (`item()`), and carries that tensor's rounding.
    """
    wide, narrow = (
        (torch.complex128, torch.complex64) if isinstance(ref, complex) else (torch.float64, torch.float32)
    )
    left, right = (torch.tensor(value, dtype=wide, device="cpu") for value in (ref, res))
    target = None
    if isinstance(truth, (float, complex)) and isinstance(truth, complex) == isinstance(ref, complex):
        target = torch.tensor(truth, dtype=wide, device="cpu")
    elif (
        isinstance(truth, torch.Tensor)
        and truth.dim() == 0
        and truth.is_complex() == isinstance(ref, complex)
    ):
        target = truth
    return _values(left, right, target, path, rule, narrow)


def _metadata(ref: torch.Tensor, res: torch.Tensor, rule: Rule) -> tuple[Difference, Any, Any] | None:
    """Return the first difference in type, shape, dtype, device, layout or strides; None without one."""
    kinds = [_kind(ref), _kind(res)]
    if kinds[0] is not kinds[1]:
        return Difference.TYPE, kinds[0].__qualname__, kinds[1].__qualname__
    nested = ref.is_nested and res.is_nested
    if not nested and tuple(ref.shape) != tuple(res.shape):
        return Difference.SHAPE, tuple(ref.shape), tuple(res.shape)
    comparable = all(is_floating(dtype) for dtype in (ref.dtype, res.dtype))
    if ref.dtype != res.dtype and (rule.exact_dtype or not comparable):
        return Difference.DTYPE, ref.dtype, res.dtype
    if ref.device != res.device and (rule.check_device or ref.is_meta or res.is_meta):
        return Difference.DEVICE, ref.device, res.device
    if ref.layout != res.layout:
        return Difference.LAYOUT, ref.layout, res.layout
    if ref.is_nested != res.is_nested:
        eager, compiled = ("nested" if tensor.is_nested else "not nested" for tensor in (ref, res))
        return Difference.LAYOUT, eager, compiled
    if rule.check_stride and ref.layout is torch.strided and not nested:
        strides = [_telling_strides(tensor) for tensor in (ref, res)]
        if strides[0] != strides[1]:
            return Difference.STRIDE, ref.stride(), res.stride()
    return None


def _parts(
    ref: dict[str, Any], res: dict[str, Any], truth: dict[str, Any] | None, path: str, rule: Rule
) -> _Found:
    leaves: list[Leaf] = []
    notes: list[str] = []
    if list(ref) != list(res):
        text = f"{len(ref)} parts in eager, {len(res)} compiled"
        return [differing(path, Difference.STRUCTURE, text)], []
    aligned = truth if truth is not None and list(truth) == list(ref) else {}
    for name, piece in ref.items():
        other, target = res[name], aligned.get(name)
        where = path + name
        if isinstance(piece, torch.Tensor) and isinstance(other, torch.Tensor):
            found, said = compare_tensors(piece, other, target, where, rule)
            leaves += found
            notes += said
            if name.endswith("indices()") and (target is None or not _equal(piece, target)):
                aligned = {}  # the values of the truth belong to other places
        elif isinstance(piece, float) and isinstance(other, float):
            leaves.append(compare_number(piece, other, None, where, rule))
        elif piece != other:
            leaves.append(differing(where, Difference.VALUE, f"{piece} in eager, {other} compiled"))
    return leaves, notes


def _plain(ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, path: str, rule: Rule) -> Leaf:
    if rule.visit is not None:
        rule.visit(path, ref, res, truth)
    if is_floating(ref.dtype):
        return _values(ref, res, _usable(truth, ref), path, rule, coarser(ref.dtype, res.dtype))
    leaf = SmallLeaf(path, ref, res, truth, None)
    return leaf if fits(ref, res, EXACT) and not rule.ignore_non_fp else judge_alone(leaf, rule)


def _values(
    ref: torch.Tensor,
    res: torch.Tensor,
    truth: torch.Tensor | None,
    path: str,
    rule: Rule,
    dtype: torch.dtype,
) -> Leaf:
    bits = rule.strict and ref.dtype is res.dtype
    if ref.numel() == 0 and not bits:
        return equal_leaf(path, ref)
    limits = None if bits else _precision(dtype, rule, blind=truth is None)
    leaf = SmallLeaf(path, ref, res, truth, limits)
    if fits(ref, res, FLOATING) and not rule.cos_similarity:
        return leaf
    return glance(leaf, rule) or judge_alone(leaf, rule)


def judge_alone(leaf: SmallLeaf, rule: Rule) -> LeafComparison:
    """Compare a leaf by itself, by the complete rule."""
    path, ref, res, truth, limits = leaf
    if limits is not None:
        return judge_floating(path, ref, res, truth, rule, limits)
    return _excused_by_rounding(_exact(ref, res, path, rule), ref, res, truth, rule)


def _precision(dtype: torch.dtype, rule: Rule, *, blind: bool) -> DtypeLimits:
    return precision_of(coarser(dtype, rule.blind_dtype) if blind and rule.blind_dtype is not None else dtype)


def granted_to(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, rule: Rule
) -> tuple[Granted, torch.Tensor]:
    """Return what the rule grants a floating leaf, and the tensor that it is measured against."""
    target = _usable(truth, ref)
    precision = _precision(coarser(ref.dtype, res.dtype), rule, blind=target is None)
    return granted(ref, res, target, rule, precision), ref if target is None else target


def _exact(ref: torch.Tensor, res: torch.Tensor, path: str, rule: Rule) -> LeafComparison:
    floating = is_floating(ref.dtype)
    if rule.ignore_non_fp and not floating:
        return LeafComparison(path=path, elements=ref.numel(), detail="not floating: ignored")
    found = unequal(ref, res, bits=floating)
    if not found.count or found.index is None:
        return equal_leaf(path, ref)
    eager, compiled = value_at(ref, found.index), value_at(res, found.index)
    text = f"{found.count} of {ref.numel()} elements are not equal (compiled {compiled}, eager {eager})"
    return LeafComparison(
        path=path,
        difference=Difference.VALUE,
        detail=text,
        blamed=Blame.COMPILED,
        index=found.index,
        ref_value=eager,
        res_value=compiled,
        elements=ref.numel(),
        mismatched=found.count,
        max_abs=found.max_abs,
    )


def _excused_by_rounding(
    leaf: LeafComparison, ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, rule: Rule
) -> LeafComparison:
    """Let integers made from rounded floats (quantiser codes, indices of near ties) differ as eager's do.

    Such noise exists only where eager itself misses the truth; integer arithmetic never does, and stays
    exact. The compiled side may be wrong about as often as eager (twice, and two more for small leaves), and
    not further off than four times eager's worst.
    """
    if leaf.same or rule.strict or truth is None or truth.shape != ref.shape or truth.dtype is not ref.dtype:
        return leaf
    eager, compiled = unequal(ref, truth), unequal(res, truth)
    further = (compiled.max_abs or 0.0) > 4 * (eager.max_abs or 0.0)
    if not eager.count or compiled.count > 2 * eager.count + 2 or further:
        return leaf
    text = f"integers of rounded floats: {compiled.count} differ from float64, of eager's {eager.count}"
    return LeafComparison(path=leaf.path, detail=text, elements=leaf.elements, max_abs=leaf.max_abs)


def _usable(truth: torch.Tensor | None, ref: torch.Tensor) -> torch.Tensor | None:
    """Return the truth where it can serve as one: the same shape and kind of number, and real data."""
    if truth is None or truth.shape != ref.shape or truth.layout is not torch.strided:
        return None
    if truth.dtype not in (torch.float64, torch.complex128) or truth.is_meta or is_fake(truth):
        return None
    return truth if truth.is_complex() == ref.is_complex() else None


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself: no gradient, no subclass, no deferred zeros."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if type(tensor) is not torch.Tensor and not is_wrapper_subclass(tensor) and not is_fake(tensor):
        with DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(torch.Tensor)
    if is_zero_tensor(tensor):
        tensor = torch.zeros(1, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
    return tensor


def is_floating(dtype: torch.dtype) -> bool:
    return (dtype.is_floating_point or dtype.is_complex) and dtype not in PACKED_DTYPES


def _kind(tensor: torch.Tensor) -> type:
    """Return the class to compare: parameters and buffers count as plain tensors."""
    plain = isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)) and not is_wrapper_subclass(tensor)
    return torch.Tensor if plain else type(tensor)


def _telling_strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides that affect the layout: not of dimensions of size one, nor of an empty tensor."""
    if tensor.numel() == 0:
        return []
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _equal(piece: torch.Tensor, target: torch.Tensor) -> bool:
    return piece.shape == target.shape and not unequal(piece, target).count


def _count(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_nested else int(tensor.numel())


def differing(
    path: str, difference: Difference, detail: str, ref: str = "", res: str = "", *, elements: int = 1
) -> LeafComparison:
    """Return a leaf that differs as a whole, for which the compiled side is blamed."""
    return LeafComparison(
        path=path,
        difference=difference,
        detail=detail,
        blamed=Blame.COMPILED,
        ref_value=ref,
        res_value=res,
        elements=elements,
        mismatched=1,
    )


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
    """Return whether a tensor is a wrapper around others (DTensor, jagged nested, quantised weights).

    Checked on torch 2.11 to 2.15: `__tensor_flatten__` is the protocol of `torch.compile` itself.
    """
    return type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__")


def inner_tensors(tensor: torch.Tensor) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the tensors inside a wrapper subclass by attribute, and the context to rebuild it with."""
    inner, context = inner_values(tensor)
    return {name: part for name, part in inner.items() if isinstance(part, torch.Tensor)}, context


def inner_values(tensor: torch.Tensor) -> tuple[dict[str, Any], Any]:
    """Return all that a wrapper subclass holds; a DTensor holds its mesh next to its local tensor."""
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return {name: getattr(tensor, name) for name in names}, context


def with_inner_tensors(tensor: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a wrapper like this one around other tensors."""
    kind: Any = type(tensor)
    inner, context = inner_values(tensor)
    made: torch.Tensor = kind.__tensor_unflatten__(
        {**inner, **parts}, context, tensor.size(), tensor.stride()
    )
    return made


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one of the sparse layouts, COO or compressed."""
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
    if hasattr(tensor, "placements"):  # of a DTensor
        parts[".placements"] = str(tensor.placements)
    return parts
