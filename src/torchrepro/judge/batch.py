"""Accept small leaves in batches: a few operations for hundreds of tensors, and one synchronisation for all.

A leaf is accepted here only if it keeps the floor of every limit of the rule (`rule.py`), which the limits
that are measured never fall below. Its verdict and its statistics are then those of the rule. All others, and
all that hold a NaN or an infinity, are for the rule to judge one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torchrepro.judge.metrics import EXPONENT_BITS, SAMPLE, sample_positions
from torchrepro.judge.rule import BLIND_QUANTILE, CANCELLATION, QUANTILE, STRATUM, DtypeLimits, Rule
from torchrepro.nouns.verdict import LeafComparison
from torchrepro.torch_api.tensors import is_zero_tensor

MOST = 1 << 18
"""Elements of the largest leaf that is worth a place in a batch."""
FLOATING = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
EXACT = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
# On a CPU torch gives more elements to several threads, and on a busy machine each operation then waits for
# the slowest of them: 7 ms an operation were seen. Elsewhere launches should be few.
_ELEMENTS = {"cpu": (1 << 15) - 1}
_ELEMENTS_ELSEWHERE = 1 << 19
# Sums taken in another order differ in the last bits: a leaf this close to a limit is left to the rule.
ROOM = 1.0 - 2.0**-20


class SmallLeaf(NamedTuple):
    """Two strided tensors of one shape that wait for a batch, and the truth if there is one."""

    path: str
    ref: torch.Tensor
    res: torch.Tensor
    truth: torch.Tensor | None
    limits: DtypeLimits | None
    """None where the bits have to be equal."""


def are_ordinary(ref: torch.Tensor, res: torch.Tensor, rule: Rule) -> bool:
    """Return whether two tensors are alike in all that metadata tells and have no parts, quickly."""
    kind = type(ref)
    return (
        (kind is torch.Tensor or kind is torch.nn.Parameter)
        and (type(res) is torch.Tensor or type(res) is torch.nn.Parameter)
        and ref.dtype is res.dtype
        and (ref.dtype in FLOATING or ref.dtype in EXACT)
        and ref.layout is res.layout is torch.strided
        and not (ref.is_nested or res.is_nested or rule.check_stride)
        and ref.shape == res.shape
        and ref.device == res.device
        and not (ref.is_meta or is_zero_tensor(ref) or is_zero_tensor(res))
    )


def fits(ref: torch.Tensor, res: torch.Tensor, dtypes: frozenset[torch.dtype]) -> bool:
    """Return whether two tensors can be in a batch."""
    return (
        0 < ref.numel() <= MOST and ref.dtype in dtypes and res.dtype in dtypes and ref.device == res.device
    )


def equal_leaf(path: str, tensor: torch.Tensor) -> LeafComparison:
    """Return the leaf of a tensor that equals its counterpart in every element."""
    return LeafComparison(path=path, elements=tensor.numel(), max_abs=0.0, max_rel=0.0, max_ulp=0.0)


def accepted(leaves: Sequence[SmallLeaf], rule: Rule) -> list[LeafComparison | None]:
    """Return the comparison of each leaf that certainly is the same; None for each that the rule decides."""
    groups = _groups(leaves)
    buffers: _Buffers = {}
    tables = [_measured([leaves[number] for number in numbers], rule, buffers) for numbers in groups]
    found: list[LeafComparison | None] = [None] * len(leaves)
    for numbers, table in zip(groups, _on_cpu(tables), strict=True):
        limits, blind = leaves[numbers[0]].limits, leaves[numbers[0]].truth is None or rule.tol is not None
        if limits is None:
            for number, same in zip(numbers, table.flatten().tolist(), strict=True):
                if same:
                    found[number] = equal_leaf(leaves[number].path, leaves[number].ref)
            continue
        counts = [leaves[number].ref.numel() for number in numbers]
        columns = _judged(table, counts, limits, rule, blind=blind)
        for number, elements, same, max_abs, max_rel, max_ulp, rmse_ref, rmse_res, cosine in zip(
            numbers, counts, *(column.tolist() for column in columns), strict=True
        ):
            if same:
                found[number] = LeafComparison(
                    path=leaves[number].path,
                    elements=elements,
                    max_abs=max_abs,
                    max_rel=max_rel,
                    max_ulp=max_ulp,
                    rmse_ref=None if blind else rmse_ref,
                    rmse_res=None if blind else rmse_res,
                    cosine=cosine,
                )
    return found


def _groups(leaves: Sequence[SmallLeaf]) -> list[list[int]]:
    """Return numbers of leaves that can be rows of one matrix."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, (_, ref, res, truth, limits) in enumerate(leaves):
        count = ref.numel()
        # Filled up with zeros, which no statistic counts; not where a sample of the places is taken.
        width = count if count > SAMPLE else 1 << (count - 1).bit_length()
        device = None if truth is None else truth.device
        key = width, ref.dtype, res.dtype, ref.device, device, None if limits is None else limits.eps
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _on_cpu(tables: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies on the CPU, with one transfer for all tables of a device and a dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, table in enumerate(tables):
        kinds.setdefault((table.device, table.dtype), []).append(number)
    for (device, _), numbers in kinds.items():
        if device.type != "cpu":
            sizes = [tables[number].numel() for number in numbers]
            together = torch.cat([tables[number].view(-1) for number in numbers]).cpu()
            for number, part in zip(numbers, together.split(sizes), strict=True):
                tables[number] = part.view(tables[number].shape)
    return tables


class _Columns(NamedTuple):
    """What is measured of the rows of a batch."""

    ref: Any
    """The norm of eager; the next four are norms too."""
    res: Any
    change: Any
    truth: Any
    error: Any
    eager: Any
    """The norm of eager's error."""
    max_abs: Any
    max_rel: Any
    max_ulp: Any
    top: Any
    """The largest magnitude of the truth."""
    granted: Any
    """Whether every element keeps the smallest envelope that the rule can have."""


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_Buffers = dict[tuple[torch.device, int, int], torch.Tensor]


def _measured(leaves: list[SmallLeaf], rule: Rule, buffers: _Buffers) -> torch.Tensor:
    """Return a row for each leaf: `_Columns` of floating ones, of others whether they are equal."""
    width = max(leaf.ref.numel() for leaf in leaves)
    step = max(1, _ELEMENTS.get(leaves[0].ref.device.type, _ELEMENTS_ELSEWHERE) // width)
    tables = []
    for start in range(0, len(leaves), step):
        part = leaves[start : start + step]
        refs, others = [leaf.ref for leaf in part], [leaf.res for leaf in part]
        limits = part[0].limits
        if limits is None:
            ref, res = _rows(refs, width), _rows(others, width)
            if ref.is_floating_point():  # 0.0 is not -0.0
                ref, res = (rows.view(_BITS[rows.element_size()]) for rows in (ref, res))
            tables.append(torch.ne(ref, res).any(1, keepdim=True).logical_not_())
            continue
        truths = [leaf.truth for leaf in part if leaf.truth is not None and rule.tol is None]
        key = refs[0].device, len(part), width
        if key not in buffers:  # fresh memory would cost more than the arithmetic
            buffers.clear()
            buffers[key] = torch.empty((5, *key[1:]), dtype=torch.float64, device=key[0])
        ref, res, truth, change, work = buffers[key].unbind()
        _rows(refs, width, ref)
        _rows(others, width, res)
        target = _rows(truths, width, truth) if truths else None
        tables.append(torch.stack(_errors(ref, res, target, change, work, limits, rule), 1))
    return torch.cat(tables)


def _rows(tensors: list[torch.Tensor], width: int, into: torch.Tensor | None = None) -> torch.Tensor:
    """Return a matrix with a row for each tensor, filled up with zeros."""
    shape = tensors[0].shape
    if shape.numel() == width and all(tensor.shape == shape for tensor in tensors):
        parts, together, viewed = tensors, torch.stack, (len(tensors), *shape)
    else:
        zeros = tensors[0].new_zeros(width)
        flat = [tensor.reshape(-1) for tensor in tensors]
        parts = [part for tensor in flat for part in (tensor, zeros[tensor.numel() :])]
        together, viewed = torch.cat, (-1,)
    if into is None or into.dtype is not parts[0].dtype or into.device != parts[0].device:
        rows = together(parts).view(len(tensors), width)
        return rows if into is None else into.copy_(rows)
    together(parts, out=into.view(viewed))
    return into


def _errors(
    ref: torch.Tensor,
    res: torch.Tensor,
    truth: torch.Tensor | None,
    change: torch.Tensor,
    work: torch.Tensor,
    limits: DtypeLimits,
    rule: Rule,
) -> _Columns:
    """Measure rows of float64, all of which are overwritten."""
    ref_norm, res_norm = _norms(ref), _norms(res)
    change_norm = _norms(torch.sub(res, ref, out=change))
    max_abs = change.abs_().amax(1)
    smallest = max(limits.normal, sys.float_info.min)
    max_rel = torch.div(change, torch.abs(ref, out=work).clamp_(min=smallest), out=work).amax(1)
    torch.bitwise_and(ref.view(torch.int64), EXPONENT_BITS, out=work.view(torch.int64))
    max_ulp = torch.div(change, work.clamp_(min=smallest), out=work).amax(1)
    first = ref_norm, res_norm, change_norm
    if truth is None:
        magnitude = ref.abs_()
        relative = limits.blind_element if rule.tol is None else rule.tol
        excess = _excess(change, magnitude, relative)
        if rule.tol is None:
            granted = is_granted(excess, magnitude, relative, limits.smallest, BLIND_QUANTILE)
        else:
            granted = excess <= rule.tol * ROOM
        norms = *first, ref_norm, change_norm, change_norm
    else:
        truth_norm = _norms(truth)
        error, eager = res.sub_(truth), ref.sub_(truth)
        norms = *first, truth_norm, _norms(error), _norms(eager)
        magnitude = truth.abs_()
        relative = limits.element_floor
        excess = _excess(eager.abs_(), magnitude, relative).div_(limits.blame_margin)
        excess = torch.maximum(excess, _excess(error.abs_(), magnitude, relative))
        granted = is_granted(excess, magnitude, CANCELLATION * relative, limits.smallest, QUANTILE)
    return _Columns(*norms, max_abs, max_rel, max_ulp, magnitude.amax(1), granted.double())


def _judged(
    table: torch.Tensor, counts: list[int], limits: DtypeLimits, rule: Rule, *, blind: bool
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return whether each leaf is the same, and its largest errors, RMSEs and cosine."""
    found = _Columns(*table.numpy().T)
    with np.errstate(all="ignore"):  # what is not finite is not accepted
        roots = np.sqrt(counts)
        rms_truth, rmse, rmse_eager = found.truth / roots, found.error / roots, found.eager / roots
        size = np.maximum(rms_truth, found.max_abs)
        # Of float64 alone the squares can leave its range. NaN and infinity fail here as well.
        same = (found.granted > 0.0) & ((size == 0.0) | ((size > 1e-140) & (size < 1e140)))
        same &= np.isfinite(found.ref + found.res)
        floor = ROOM * ((limits.blind_rms if blind else limits.rms_floor) * rms_truth + limits.smallest)
        if rule.tol is None:
            same &= rmse <= floor
        if not blind:
            same &= (rmse_eager <= limits.blame_margin * floor) & (found.top <= limits.largest)
        norms = found.ref * found.res
        # Without cancellation: 2 ref·res = |ref|² + |res|² - |res - ref|²
        product = (found.ref**2 + found.res**2 - found.change**2) / 2.0
        cosine = np.where(norms > 0.0, np.clip(product / norms, -1.0, 1.0), found.ref == found.res)
        max_ulp = found.max_ulp / limits.eps
    return same, found.max_abs, found.max_rel, max_ulp, rmse_eager, rmse, cosine


def _norms(rows: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def _excess(error: torch.Tensor, magnitude: torch.Tensor, relative: float) -> torch.Tensor:
    """Return the largest `|error| - relative * |truth|` of each row; overwrite the errors."""
    return error.sub_(magnitude, alpha=relative * ROOM).amax(1)


def is_granted(
    excess: torch.Tensor, magnitude: torch.Tensor, relative: float, smallest: float, fraction: float
) -> torch.Tensor:
    """Return for each row whether `relative` times a quantile of its magnitudes covers the excess.

    `smallest` is granted in addition. The quantile is the `rank`-th smallest of the non-zero magnitudes:
    it is large enough exactly where fewer than `rank` are below what is needed, which takes no sorting.
    """
    enough = excess <= smallest * ROOM
    if magnitude.device.type == "cpu" and bool(enough.all()):
        return enough
    needed = (excess / ROOM - smallest).div_(relative)
    count = magnitude.shape[1]
    if count > SAMPLE:
        magnitude = magnitude[:, sample_positions(count, SAMPLE).to(magnitude.device)]
    nonzero = torch.count_nonzero(magnitude, dim=1)
    below = (magnitude < needed.unsqueeze(1)).sum(1) - (magnitude.shape[1] - nonzero)
    rank = torch.where(nonzero <= STRATUM, nonzero, (nonzero * fraction).long().clamp_(min=STRATUM))
    return enough | (below < rank)
