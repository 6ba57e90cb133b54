"""Judge one floating (or complex) leaf: measure it, apply the rule, and say which side is wrong and where."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from torchrepro.judge.exotic import UNREADABLE_DTYPES
from torchrepro.judge.metrics import Statistics, Stream
from torchrepro.judge.rule import (
    DtypeLimits,
    Envelope,
    Rule,
    blind_rms_limit,
    element_limit,
    noise_of_zero,
    rms_limit,
)
from torchrepro.nouns.verdict import Blame, Difference, LeafComparison


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the compiled side may have, and what eager may have before it is blamed."""

    rms: float
    element: float
    eager_rms: float = float("inf")
    eager_element: float = float("inf")
    noise: float = 0.0
    """A leaf that is no larger than this is noise on both sides."""


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
    stream = Stream(ref, res, truth, precision)
    if rule.tol is not None and not rule.cos_similarity:
        stream.envelope = Envelope.tolerance(rule.tol)
    elif truth is None:
        stream.envelope = Envelope.blind(stream.sample()[1], precision)
    else:
        stream.envelope = Envelope.measured(*stream.sample(), precision, ref.numel())

    found = stream.survey(everything=rule.cos_similarity)
    limits = _limits(stream, found, rule, precision, blind=truth is None)
    if found.cosine is None and _remarkable(found, limits, rule):
        found = stream.survey(everything=True)
        limits = _limits(stream, found, rule, precision, blind=truth is None)

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
    leaf = _decide(leaf, stream, found, limits, rule)
    return _with_values(leaf, ref, res, truth)


def _limits(stream: Stream, found: Statistics, rule: Rule, precision: DtypeLimits, *, blind: bool) -> _Limits:
    nothing = float("inf")
    if rule.cos_similarity:
        return _Limits(nothing, nothing)
    if rule.tol is not None:
        return _Limits(nothing, rule.tol)
    if blind:
        noise = noise_of_zero(blind=True, dtype_eps=precision.eps)
        return _Limits(blind_rms_limit(precision, found.rms_truth), stream.envelope.absolute, noise=noise)
    count, scale, margin = found.elements, found.rms_truth, precision.blame_margin
    # What a lean pass tells of eager's worst element is only an upper bound: no excuse for the compiled side.
    worst_eager = found.excess_eager if found.cosine is not None else 0.0
    return _Limits(
        rms=rms_limit(precision, count, scale, found.rmse_eager),
        element=element_limit(stream.envelope, worst_eager),
        eager_rms=margin * (rms_limit(precision, count, scale, found.rmse_compiled) + precision.eps),
        eager_element=margin * (element_limit(stream.envelope, found.excess_compiled) + precision.eps),
        noise=noise_of_zero(blind=False, dtype_eps=precision.eps),
    )


def _remarkable(found: Statistics, limits: _Limits, rule: Rule) -> bool:
    """Return whether there is anything to tell, so that the statistics should be complete."""
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
    leaf: LeafComparison, stream: Stream, found: Statistics, limits: _Limits, rule: Rule
) -> LeafComparison:
    pattern = found.pattern
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
            detail=f"{_of(getattr(pattern, name), found)}: {text}",
        )
    if pattern.both_nan and not rule.equal_nan:
        return replace(
            leaf,
            difference=Difference.VALUE,
            index=pattern.first["both_nan"],
            mismatched=pattern.both_nan,
            detail=f"{_of(pattern.both_nan, found)}: NaN on both sides, and equal_nan is off",
        )
    if rule.cos_similarity:
        assert found.cosine is not None
        if found.cosine >= rule.cosine_limit:
            return leaf
        text = f"cosine similarity {found.cosine:.6g} is below {rule.cosine_limit:.6g}"
        return _differs(leaf, stream, 0.0, text, relative=0.0)
    target = "eager" if leaf.rmse_res is None else "float64"
    if max(found.max_abs, found.rms_truth) <= limits.noise and not found.vanished:
        return leaf
    if not found.excess_compiled <= limits.element:
        return _differs(
            leaf, stream, limits.element, f"further from {target} than rounding and eager's noise explain"
        )
    if not found.rmse_compiled <= limits.rms:
        eager = "" if leaf.rmse_ref is None else f", eager's is {leaf.rmse_ref:.3g}"
        text = f"RMSE against {target} is {found.rmse_compiled:.3g}{eager}, allowed {limits.rms:.3g}"
        return _differs(leaf, stream, limits.rms, text, relative=0.0)
    if pattern.excused:
        text = f"{_of(pattern.excused, found)}: NaN or Inf of eager that the float64 truth contradicts"
        return replace(leaf, blamed=Blame.EAGER, index=pattern.first["excused"], detail=text)
    if not (found.rmse_eager <= limits.eager_rms and found.excess_eager <= limits.eager_element):
        rmse = f"RMSE {found.rmse_eager:.3g}, the compiled one's {found.rmse_compiled:.3g}"
        text = f"eager is further from float64: {rmse}"
        return replace(leaf, blamed=Blame.EAGER, detail=text)
    return leaf


def _differs(
    leaf: LeafComparison, stream: Stream, limit: float, text: str, *, relative: float | None = None
) -> LeafComparison:
    worst = stream.worst(limit, relative=relative)
    return replace(
        leaf,
        difference=Difference.VALUE,
        blamed=Blame.COMPILED,
        index=worst.index,
        mismatched=max(1, worst.beyond),
        detail=f"{max(1, worst.beyond)} of {leaf.elements} elements: {text}",
    )


def _of(count: int, found: Statistics) -> str:
    return f"{count} of {found.elements} elements"


def _with_values(
    leaf: LeafComparison, ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None
) -> LeafComparison:
    if leaf.index is None:
        return leaf
    values = [value_at(tensor, leaf.index) for tensor in (ref, res)]
    told = "" if truth is None else value_at(truth, leaf.index)
    detail = f"{leaf.detail} (compiled {values[1]}, eager {values[0]}" + (
        f", float64 {told})" if told else ")"
    )
    return replace(leaf, ref_value=values[0], res_value=values[1], truth_value=told, detail=detail)


def value_at(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    """Return one element as text; its bytes where the dtype has no Python number."""
    element = tensor[index]
    if tensor.dtype in UNREADABLE_DTYPES:
        return str(element.reshape(1).view(torch.uint8).tolist())
    value = element.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)
