"""The decision rule: how far from the truth a compiled result may be, given how far eager is.

Arithmetic on a few numbers per leaf; every constant is explained in docs/judging.md. A floating leaf passes
if both its error as a whole (RMSE) and the error of every single element are in line with eager's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from torchrepro.judge.metrics import Statistics, Stream
from torchrepro.nouns.verdict import Blame, Difference, LeafComparison

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

# An error measured on n elements is itself uncertain: at n = 2 the ratio of two healthy RMSEs exceeds 20
# once in 400, at n = 12 it hardly exceeds 4 (quantiles of the F distribution).
_FEW = 12
_SINGLE = 2.0**-23
STRATUM = 64
# Absolute noise of a small element: this many element floors at the magnitude of the smaller elements.
CANCELLATION = 8.0
# The non-zero magnitudes that stand for the smaller elements, and for all where there is no truth.
QUANTILE, BLIND_QUANTILE = 0.125, 0.5


Visit = Callable[[str, torch.Tensor, torch.Tensor, torch.Tensor | None], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as the same. The defaults are the rule of docs/judging.md."""

    tol: float | None = None
    """|compiled - eager| <= tol + tol * |eager| for every element, instead of the rule."""
    strict: bool = False
    """Any difference of the bits counts, except in the payload of a NaN."""
    cos_similarity: bool = False
    """The angle between the two counts (cosine at least 0.99, or 1 - tol), and the NaN and Inf pattern."""
    equal_nan: bool = True
    exact_dtype: bool = True
    ignore_non_fp: bool = False
    check_stride: bool = False
    check_device: bool = True
    blind_dtype: torch.dtype | None = None
    """The coarsest dtype that the computation went through: without a truth, its digits are all there are."""
    visit: Visit | None = None
    """Called with path, eager, compiled and truth of each plain tensor that is compared."""

    @property
    def asks_about_rounding(self) -> bool:
        """Whether a difference may be explained by rounding; not where the caller says what is the same."""
        return self.tol is None and not self.strict and not self.cos_similarity

    @property
    def cosine_limit(self) -> float:
        return 0.99 if self.tol is None else 1.0 - self.tol


@dataclass(frozen=True, slots=True)
class DtypeLimits:
    """The precision of a floating dtype, and the slack the rule gives it; relative but for the last three."""

    eps: float
    rms_floor: float
    """RMSE that is always granted, relative to the RMS of the truth."""
    element_floor: float
    """Error of one element that is always granted, relative to its magnitude."""
    rms_factor: float
    """How many times eager's RMSE is granted."""
    blind_rms: float
    """RMSE granted where there is no truth and eager stands in for it."""
    blind_element: float
    smallest: float
    """Absolute error that is always granted: flushed denormals, the spacing of the smallest numbers."""
    normal: float
    """The smallest normal number: relative errors are not measured against anything smaller."""
    largest: float
    blame_margin: float
    """Eager is blamed only when it misses the other side's bound by this factor: it often is less precise."""


_ULPS: dict[torch.dtype, tuple[float, float, float, float, float, float]] = {
    # rms floor, element floor (ulp); factor on eager's RMSE; blind RMSE, blind element (ulp); blame margin
    torch.float64: (2.0**12, 2.0**14, 10.0, 2.0**15, 2.0**18, 4.0),
    torch.float32: (32.0, 64.0, 10.0, 256.0, 2048.0, 4.0),
    torch.float16: (2.0, 6.0, 3.0, 16.0, 64.0, 16.0),
    torch.bfloat16: (1.5, 3.0, 3.0, 5.0, 32.0, 16.0),
}
_NARROW = (1.0, 1.5, 2.0, 1.0, 2.0, 4.0)
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


@lru_cache(maxsize=256)
def precision_of(dtype: torch.dtype) -> DtypeLimits:
    """Return the limits of a floating or complex dtype."""
    dtype = _REAL.get(dtype, dtype)
    info = torch.finfo(dtype)
    rms, element, factor, blind_rms, blind_element, margin = _ULPS.get(dtype, _NARROW)
    # GPUs and fast-math CPUs flush denormals of the wide types; those of half and fp8 are ordinary values.
    flushed = dtype in (torch.float64, torch.float32, torch.bfloat16)
    return DtypeLimits(
        eps=info.eps,
        rms_floor=rms * info.eps,
        element_floor=element * info.eps,
        rms_factor=factor,
        blind_rms=blind_rms * info.eps,
        blind_element=blind_element * info.eps,
        smallest=info.smallest_normal * (1.0 if flushed else 2.0 * info.eps),
        normal=info.smallest_normal,
        largest=info.max,
        blame_margin=margin,
    )


@lru_cache(maxsize=256)
def coarser(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Return the dtype with fewer digits of the two."""
    eps = {dtype: torch.finfo(_REAL.get(dtype, dtype)).eps for dtype in (first, second)}
    return max(eps, key=eps.__getitem__)


@dataclass(frozen=True, slots=True)
class Envelope:
    """How far one element may be off: `absolute + relative * |truth|`, a model of eager's own noise.

    Cancellation leaves noise that does not depend on the result's magnitude, rounding leaves noise in
    proportion to it. A tensor that holds 1e-3 and -1e9 side by side needs both terms: with one bound for the
    whole tensor the large elements would excuse any error in the small ones.
    """

    absolute: float
    relative: float

    @classmethod
    def blind(cls, magnitude: torch.Tensor, precision: DtypeLimits) -> Envelope:
        """Return an envelope without a truth: a tolerance by dtype, at the scale of the middle elements."""
        scale = _order_statistic(magnitude, BLIND_QUANTILE)
        return cls(precision.blind_element * scale + precision.smallest, precision.blind_element)

    @classmethod
    def measured(
        cls, error: torch.Tensor, magnitude: torch.Tensor, precision: DtypeLimits, count: int
    ) -> Envelope:
        """Return an envelope from a sample of eager's errors and the magnitudes of the truth there."""
        typical = _order_statistic(magnitude, QUANTILE)
        floor = CANCELLATION * precision.element_floor * typical + precision.smallest
        if not error.numel():
            return cls(floor, precision.element_floor)
        strata = _strata(magnitude)
        sizes, spreads = _rms(magnitude[strata]), _rms(error[strata])
        noise = [
            (size, _beyond_rounding(spread, size, precision))
            for size, spread in zip(sizes, spreads, strict=True)
        ]
        top_size, top_noise = noise[-1]
        relative = top_noise / top_size if top_size else 0.0
        absolute = max(max(0.0, spread - relative * size) for size, spread in noise)
        factor = 8.0 * _uncertainty(count)
        return cls(floor + factor * absolute, precision.element_floor + factor * relative)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the compiled side may have, and what eager may have before it is blamed."""

    rms: float = math.inf
    element: float = math.inf
    """Of the excess over the envelope's relative part."""
    eager_rms: float = math.inf
    eager_element: float = math.inf
    noise: float = 0.0
    """The size below which a whole leaf may be what rounding left of a mathematical zero.

    A sum that cancels (the mean of a normalised row, the gradient of a bias before a batch norm) is noise of
    a few ulp of values of order one that the leaf does not show. Only a truth with more digits tells such
    noise from small results; float64 leaves never have one.
    """

    @classmethod
    def of(
        cls, found: Statistics, envelope: Envelope, rule: Rule, precision: DtypeLimits, *, blind: bool
    ) -> _Limits:
        if rule.cos_similarity:
            return cls()
        if rule.tol is not None:
            return cls(element=rule.tol)
        double = precision.eps < _SINGLE
        noise = 2.0**12 * precision.eps if double else _SINGLE if blind else 0.0
        if blind:
            rms = precision.blind_rms * found.rms_truth + precision.smallest
            return cls(rms, envelope.absolute, noise=noise)

        def rms_limit(other: float) -> float:
            """Return the RMSE that one side may have, given that of the other."""
            noise = _beyond_rounding(other, found.rms_truth, precision)
            granted = precision.rms_floor * found.rms_truth + precision.smallest
            return granted + precision.rms_factor * _uncertainty(found.elements) * noise

        # The largest excess of the other side is the tail of its noise, which a sample cannot show. A lean
        # pass gives only an upper bound of eager's, which must not widen the compiled side's limit.
        worst_eager = found.excess_eager if found.cosine is not None else 0.0
        margin, eps = precision.blame_margin, precision.eps
        return cls(
            rms=rms_limit(found.rmse_eager),
            element=max(envelope.absolute, 4.0 * worst_eager),
            eager_rms=margin * (rms_limit(found.rmse_compiled) + eps),
            eager_element=margin * (max(envelope.absolute, 4.0 * found.excess_compiled) + eps),
            noise=noise,
        )


def judge_floating(
    path: str,
    ref: torch.Tensor,
    res: torch.Tensor,
    truth: torch.Tensor | None,
    rule: Rule,
    precision: DtypeLimits,
) -> LeafComparison:
    """Compare two strided tensors of one shape, as far as the truth (of that shape too) allows."""
    if rule.tol is not None or rule.cos_similarity:
        truth = None
    stream, found, limits, envelope = _measured(ref, res, truth, rule, precision)
    leaf = LeafComparison(
        path=path,
        elements=ref.numel(),
        max_abs=found.max_abs,
        max_rel=found.max_rel,
        max_ulp=found.max_ulp,
        rmse_ref=None if truth is None else found.rmse_eager,
        rmse_res=None if truth is None else found.rmse_compiled,
        cosine=found.cosine,
    )
    leaf = _decide(leaf, stream, found, limits, rule, envelope.relative)
    if leaf.index is None:
        return leaf
    eager, compiled = value_at(ref, leaf.index), value_at(res, leaf.index)
    told = "" if truth is None else value_at(truth, leaf.index)
    values = f"compiled {compiled}, eager {eager}" + (f", float64 {told}" if told else "")
    detail = f"{leaf.detail} ({values})"
    return replace(leaf, ref_value=eager, res_value=compiled, truth_value=told, detail=detail)


@dataclass(frozen=True, slots=True)
class Granted:
    """What the rule grants a floating leaf: an element `element + relative * |truth|`, the whole `rms`."""

    element: float
    relative: float
    rms: float


def granted(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, rule: Rule, precision: DtypeLimits
) -> Granted:
    """Return how far from the truth (from eager without one) the rule lets the compiled side be."""
    _, _, limits, envelope = _measured(ref, res, truth, rule, precision)
    return Granted(limits.element, envelope.relative, limits.rms)


def _measured(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None, rule: Rule, precision: DtypeLimits
) -> tuple[Stream, Statistics, _Limits, Envelope]:
    """Measure two tensors as closely as the decision needs."""
    stream = Stream(ref, res, truth, precision)
    if rule.tol is not None and not rule.cos_similarity:
        envelope = Envelope(rule.tol, rule.tol)
    elif truth is None:
        envelope = Envelope.blind(stream.sample()[1], precision)
    else:
        envelope = Envelope.measured(*stream.sample(), precision, ref.numel())

    found = stream.survey(envelope, everything=rule.cos_similarity)
    limits = _Limits.of(found, envelope, rule, precision, blind=truth is None)
    if found.cosine is None and _remarkable(found, limits, rule):
        found = stream.survey(envelope, everything=True)
        limits = _Limits.of(found, envelope, rule, precision, blind=truth is None)
    return stream, found, limits, envelope


def _remarkable(found: Statistics, limits: _Limits, rule: Rule) -> bool:
    """Return whether there is anything to report, which needs complete statistics."""
    pattern = found.pattern
    return bool(
        pattern.gained
        or pattern.lost
        or pattern.excused
        or (pattern.both_nan and not rule.equal_nan)
        or not found.rmse_compiled <= limits.rms
        or not found.excess_compiled <= limits.element
        or not found.rmse_eager <= limits.eager_rms
        or not found.excess_eager <= limits.eager_element
    )


def _decide(
    leaf: LeafComparison, stream: Stream, found: Statistics, limits: _Limits, rule: Rule, relative: float
) -> LeafComparison:
    pattern = found.pattern

    def differs(limit: float, relative: float, text: str) -> LeafComparison:
        index, beyond = stream.worst(limit, relative)
        wrong = max(1, beyond)
        return replace(
            leaf,
            difference=Difference.VALUE,
            blamed=Blame.COMPILED,
            index=index,
            mismatched=wrong,
            detail=f"{wrong} of {leaf.elements} elements: {text}",
        )

    if pattern.gained or pattern.lost:
        name = "gained" if pattern.gained else "lost"
        text = (
            "NaN or Inf where eager is finite"
            if pattern.gained
            else "no NaN or Inf, or another, where eager has one"
        )
        return replace(
            leaf,
            difference=Difference.NON_FINITE if pattern.gained else Difference.VALUE,
            blamed=Blame.COMPILED,
            index=pattern.first[name],
            mismatched=pattern.gained + pattern.lost,
            detail=f"{getattr(pattern, name)} of {leaf.elements} elements: {text}",
        )
    if pattern.both_nan and not rule.equal_nan:
        return replace(
            leaf,
            difference=Difference.VALUE,
            index=pattern.first["both_nan"],
            mismatched=pattern.both_nan,
            detail=f"{pattern.both_nan} of {leaf.elements} elements: NaN on both sides, and equal_nan is off",
        )
    if rule.cos_similarity:
        assert found.cosine is not None
        if found.cosine >= rule.cosine_limit:
            return leaf
        return differs(0.0, 0.0, f"cosine similarity {found.cosine:.6g} is below {rule.cosine_limit:.6g}")
    if max(found.max_abs, found.rms_truth) <= limits.noise and not found.vanished:
        return leaf
    target = "eager" if leaf.rmse_res is None else "float64"
    if not found.excess_compiled <= limits.element:
        text = f"further from {target} than rounding and eager's noise explain"
        return differs(limits.element, relative, text)
    if not found.rmse_compiled <= limits.rms:
        eager = "" if leaf.rmse_ref is None else f", eager's is {leaf.rmse_ref:.3g}"
        text = f"RMSE against {target} is {found.rmse_compiled:.3g}{eager}, allowed {limits.rms:.3g}"
        return differs(limits.rms, 0.0, text)
    if pattern.excused:
        counted = f"{pattern.excused} of {leaf.elements} elements"
        text = f"{counted}: NaN or Inf of eager that the float64 truth contradicts"
        return replace(leaf, blamed=Blame.EAGER, index=pattern.first["excused"], detail=text)
    if not (found.rmse_eager <= limits.eager_rms and found.excess_eager <= limits.eager_element):
        rmse = f"RMSE {found.rmse_eager:.3g}, the compiled one's {found.rmse_compiled:.3g}"
        return replace(leaf, blamed=Blame.EAGER, detail=f"eager is further from float64: {rmse}")
    return leaf


def value_at(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    """Return one element as text; its bytes where the dtype has no Python number."""
    element = tensor[index]
    if tensor.dtype in UNREADABLE_DTYPES:
        return str(element.reshape(1).view(torch.uint8).tolist())
    value = element.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _uncertainty(count: int) -> float:
    return 1.0 + _FEW / max(count, 1)


def _beyond_rounding(rmse: float, rms: float, precision: DtypeLimits) -> float:
    """Return the part of an RMSE that rounding the exact result to the dtype does not explain."""
    rounding = precision.eps / 2 * rms
    if not rmse > rounding:
        return 0.0
    return math.sqrt(1.0 - (rounding / rmse) ** 2) * rmse


def _strata(magnitude: torch.Tensor) -> torch.Tensor:
    """Return rows of indices: elements of similar magnitude, from smallest to largest, none left out."""
    count = magnitude.numel()
    # Two at least: from one alone, noise that does not depend on the magnitude cannot be told from noise that
    # does, and a healthy small gradient next to large ones looks wrong (seen under autocast).
    rows = max(1 if count < 4 else 2, min(STRATUM, count // STRATUM))
    width = -(-count // rows)
    starts = torch.linspace(0, count - width, rows, device="cpu").long()
    return magnitude.argsort()[starts[:, None] + torch.arange(width, device="cpu")]


def _rms(rows: torch.Tensor) -> list[float]:
    """Return the RMS of every row, scaled so that values near the ends of float64 do not overflow."""
    largest = rows.abs().amax(1, keepdim=True).clamp_(min=sys.float_info.min)
    scaled = (rows / largest).square().mean(1, keepdim=True).sqrt() * largest
    return [float(value) for value in scaled.flatten().tolist()]


def _order_statistic(magnitude: torch.Tensor, fraction: float) -> float:
    """Return a quantile of the non-zero magnitudes; the largest where there are too few to have quantiles."""
    nonzero = magnitude[magnitude > 0]
    if nonzero.numel() <= STRATUM:
        return float(nonzero.max()) if nonzero.numel() else 0.0
    rank = max(STRATUM, int(nonzero.numel() * fraction))
    return float(nonzero.kthvalue(rank).values)
