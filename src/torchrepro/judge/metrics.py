"""Streams two floating tensors and the truth through a few cache-sized buffers and measures their errors.

Each tensor is read once, in blocks, whatever its size or strides; nothing of a whole tensor's size is ever
allocated. Large tensors first get a lean pass (sums of squares and extremes, about as fast as copying the
three tensors); ulp, relative errors and the angle are measured where a block tells something, or everywhere
once the leaf is known to differ.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from enum import IntEnum

import torch

from torchrepro.judge.blocks import Selection, Walk, sample_positions, take
from torchrepro.judge.rule import DtypeLimits, Envelope

_EXPONENT_BITS = 0x7FF0000000000000
_FAR = 2.0**512
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Sizes:
    """In elements: how much is read at a time, up to where all is measured at once, how many are sampled."""

    block: int
    small: int = 1 << 20
    sample: int = 1 << 14

    @classmethod
    def for_device(cls, device: torch.device) -> Sizes:
        """On a CPU the buffers should stay in the cache, elsewhere launches should be few.

        Measured for 64 Mi elements on two EPYC cores: blocks of 128 Ki take 0.12 s, 256 Ki 0.096 s, 512 Ki
        0.090 s, 1 Mi 0.108 s. On a busy machine fewer, larger ones win: each operation awaits every thread.
        """
        return cls(1 << 19 if device.type == "cpu" else 1 << 20)


class _Column(IntEnum):
    """What is kept of a block."""

    TRUTH2 = 0
    EAGER2 = 1
    COMPILED2 = 2
    EXCESS_EAGER = 3
    EXCESS_COMPILED = 4
    MAX_ABS = 5
    MAX_REL = 6
    MAX_ULP = 7
    REF2 = 8
    RES2 = 9
    REF_RES = 10
    LOW_EAGER = 11
    LOW_COMPILED = 12
    LOW_ABS = 13


@dataclass(slots=True)
class Pattern:
    """Where NaN and Inf disagree. `excused`: eager is the one that the truth contradicts."""

    gained: int = 0
    lost: int = 0
    excused: int = 0
    both_nan: int = 0
    eager_count: int = 0
    """Elements that have no error of eager (or none of the compiled side) because something is not finite."""
    compiled_count: int = 0
    first: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The errors of a leaf. Without a truth, eager stands in for it and `rmse_eager` is zero.

    The excesses are the largest `|error| - envelope.relative * |truth|`. After a lean pass `cosine` is None
    and `max_rel` and `max_ulp` are those of the blocks that were measured in full.
    """

    elements: int
    rms_truth: float
    rmse_eager: float
    rmse_compiled: float
    excess_eager: float
    excess_compiled: float
    max_abs: float
    max_rel: float
    max_ulp: float
    cosine: float | None
    vanished: bool
    """The compiled side is zero everywhere and eager is not (known after a full pass)."""
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off, and how many are beyond the limit."""

    index: tuple[int, ...] | None
    beyond: int


class Stream:
    """Two floating or complex tensors of one shape, and the truth if there is one, ready to be measured."""

    def __init__(
        self,
        ref: torch.Tensor,
        res: torch.Tensor,
        truth: torch.Tensor | None,
        precision: DtypeLimits,
        sizes: Sizes | None = None,
    ) -> None:
        tensors = [ref, res] if truth is None else [ref, res, truth]
        self._precision = precision
        self._dtype = ref.dtype
        self._device = ref.device
        self._complex = ref.is_complex()
        self._sizes = sizes or Sizes.for_device(ref.device)
        limit = self._sizes.block
        self._walk = Walk.over(tensors, limit // 2 if self._complex else limit)
        self._sources = tensors
        self._ref, self._res, *rest = (self._walk.arranged(tensor) for tensor in tensors)
        self._truth = rest[0] if rest else None
        self._numbers = ref.numel() * (2 if self._complex else 1)
        self._size = min(limit, self._numbers)
        self._buffers: dict[str, torch.Tensor] = {}
        self._scale = 1.0
        self.elements = ref.numel()
        self.envelope = Envelope(0.0, 0.0)

    def sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Eager's errors (zero without a truth) and the magnitudes of the truth, at spread-out elements."""
        positions = sample_positions(self.elements, self._sizes.sample)
        ref = take(self._sources[0], positions)
        truth = ref if self._truth is None else take(self._sources[2], positions)
        known = ref.isfinite() & truth.isfinite() & (truth.abs() <= self._precision.largest)
        return (ref - truth)[known], truth[known].abs()

    def survey(self, *, everything: bool = False) -> Statistics:
        """Measure all blocks: in full where the leaf is small or `everything` is asked for, else leanly.

        After a lean pass the blocks that hold a non-finite value or leave the envelope are measured in full.
        """
        parts = self._walk.parts
        table = torch.zeros((len(parts), len(_Column)), dtype=torch.float64, device=self._device)
        pattern = Pattern()
        lean = not everything and self.elements > self._sizes.small and self._scale == 1.0
        telling = list(range(len(parts)))
        if lean:
            for part, row in zip(parts, table.unbind(), strict=True):
                self._measure_leanly(part, row.unbind())
            measured = table.cpu()
            for high, low in (
                (_Column.EXCESS_EAGER, _Column.LOW_EAGER),
                (_Column.EXCESS_COMPILED, _Column.LOW_COMPILED),
                (_Column.MAX_ABS, _Column.LOW_ABS),
            ):
                measured[:, high] = torch.maximum(measured[:, high], -measured[:, low])
            tells = ~measured.isfinite().all(1)
            tells |= measured[:, _Column.EXCESS_COMPILED] > self.envelope.absolute
            tells |= measured[:, _Column.EXCESS_EAGER] > self._precision.blame_margin * self.envelope.absolute
            table = measured.to(self._device)
            telling = tells.nonzero().flatten().tolist()
        for number in telling:
            self._measure(parts[number], table[number], pattern)
        statistics = self._gather(table.cpu(), pattern, full=len(telling) == len(parts))
        if self._scale == 1.0 and self._dtype in (torch.float64, torch.complex128):
            scale = _scale_for(statistics)
            if scale != 1.0:
                self._scale = scale
                return self.survey(everything=everything)
        return statistics

    def worst(self, limit: float, *, relative: float | None = None) -> Worst:
        """Return the element with the largest excess, and how many exceed `limit`."""
        relative = self.envelope.relative if relative is None else relative
        best, where, beyond = -math.inf, None, 0
        for part in self._walk.parts:
            _, _, truth, error = self._errors(part, Pattern())
            excess = error.abs_().sub_(truth.abs_(), alpha=relative)
            if self._complex:
                excess = excess.view(-1, 2).amax(1)
            beyond += int((excess > limit * self._scale).sum())
            offset = int(excess.argmax())
            if float(excess[offset]) > best:
                best, where = float(excess[offset]), self._walk.index_of(part, offset)
        return Worst(where, beyond)

    def _gather(self, table: torch.Tensor, pattern: Pattern, *, full: bool) -> Statistics:
        sums = table.sum(0).tolist()
        tops = table.amax(0).tolist() if len(table) else sums
        back = 1.0 / self._scale

        def rms(column: _Column, missing: int = 0) -> float:
            return math.sqrt(sums[column] / max(1, self._numbers - missing)) * back

        ref2, res2, cross = sums[_Column.REF2], sums[_Column.RES2], sums[_Column.REF_RES]
        cosine = None
        if full:
            norms = math.sqrt(ref2) * math.sqrt(res2)
            cosine = max(-1.0, min(1.0, cross / norms)) if norms else (1.0 if ref2 == res2 else 0.0)
        return Statistics(
            elements=self.elements,
            rms_truth=rms(_Column.TRUTH2),
            rmse_eager=rms(_Column.EAGER2, pattern.eager_count),
            rmse_compiled=rms(_Column.COMPILED2, pattern.compiled_count),
            excess_eager=tops[_Column.EXCESS_EAGER] * back,
            excess_compiled=tops[_Column.EXCESS_COMPILED] * back,
            max_abs=tops[_Column.MAX_ABS] * back,
            max_rel=tops[_Column.MAX_REL],
            max_ulp=tops[_Column.MAX_ULP],
            cosine=cosine,
            vanished=res2 == 0.0 and ref2 > 0.0,
            pattern=pattern,
        )

    def _measure_leanly(self, part: Selection, row: tuple[torch.Tensor, ...]) -> None:
        ref, res = self._ref[part], self._res[part]
        eager, compiled = self._load("ref", ref), self._load("res", res)
        if self._dtype is torch.float32 and self._walk.flat and res.dtype is ref.dtype:
            change = self._buffer("change", torch.float32)[: ref.numel()]
            torch.sub(res, ref, out=change)
            low, high = torch.aminmax(change)
            row[_Column.LOW_ABS].copy_(low)
            row[_Column.MAX_ABS].copy_(high)
        else:
            change = torch.sub(compiled, eager, out=self._buffer("work")[: eager.numel()])
            torch.aminmax(change, out=(row[_Column.LOW_ABS], row[_Column.MAX_ABS]))
        if self._truth is None:
            torch.dot(eager, eager, out=row[_Column.TRUTH2])
            compiled.sub_(eager)
        else:
            truth = self._truth[part]
            direct = truth.dtype is torch.float64 and truth.is_contiguous() and truth.device == self._device
            exact = truth.view(-1) if direct else self._load("truth", truth)
            eager.sub_(exact)
            compiled.sub_(exact)
            torch.dot(exact, exact, out=row[_Column.TRUTH2])
            torch.dot(eager, eager, out=row[_Column.EAGER2])
        torch.dot(compiled, compiled, out=row[_Column.COMPILED2])
        if self._truth is not None and self._dtype in _HALF:
            # Rounding errors of a half type grow with the value: without the relative part of the envelope
            # every block would look suspicious and be measured twice.
            magnitude = torch.abs(exact, out=self._buffer("magnitude")[: exact.numel()])
            for error, column in ((eager, _Column.EXCESS_EAGER), (compiled, _Column.EXCESS_COMPILED)):
                excess = error.abs_().sub_(magnitude, alpha=self.envelope.relative)
                torch.amax(excess, 0, out=row[column])
            return
        if self._truth is not None:
            torch.aminmax(eager, out=(row[_Column.LOW_EAGER], row[_Column.EXCESS_EAGER]))
        torch.aminmax(compiled, out=(row[_Column.LOW_COMPILED], row[_Column.EXCESS_COMPILED]))

    def _measure(self, part: Selection, row: torch.Tensor, pattern: Pattern) -> None:
        ref, res, truth, error = self._errors(part, pattern)
        cells = row.zero_().unbind()
        torch.dot(ref, ref, out=cells[_Column.REF2])
        torch.dot(res, res, out=cells[_Column.RES2])
        torch.dot(ref, res, out=cells[_Column.REF_RES])
        torch.dot(truth, truth, out=cells[_Column.TRUTH2])
        torch.dot(error, error, out=cells[_Column.COMPILED2])

        change = torch.sub(res, ref, out=res).abs_()
        work = self._buffer("work")[: ref.numel()]
        torch.amax(change, 0, out=cells[_Column.MAX_ABS])
        smallest = max(self._precision.normal * self._scale, sys.float_info.min)
        torch.div(change, torch.abs(ref, out=work).clamp_(min=smallest), out=work)
        torch.amax(work, 0, out=cells[_Column.MAX_REL])
        torch.bitwise_and(ref.view(torch.int64), _EXPONENT_BITS, out=work.view(torch.int64))
        torch.div(change, work.clamp_(min=smallest), out=work)
        torch.amax(work, 0, out=cells[_Column.MAX_ULP])
        cells[_Column.MAX_ULP].div_(self._precision.eps)

        truth.abs_()
        torch.amax(
            error.abs_().sub_(truth, alpha=self.envelope.relative), 0, out=cells[_Column.EXCESS_COMPILED]
        )
        if self._truth is not None:
            eager = self._buffer("eager")[: ref.numel()]
            torch.dot(eager, eager, out=cells[_Column.EAGER2])
            torch.amax(
                eager.abs_().sub_(truth, alpha=self.envelope.relative), 0, out=cells[_Column.EXCESS_EAGER]
            )

    def _errors(self, part: Selection, pattern: Pattern) -> tuple[torch.Tensor, ...]:
        """Both sides and the truth as float64, with zeros where not finite, and the compiled side's error.

        Eager's error is left in the buffer of that name.
        """
        ref, res = self._load("ref", self._ref[part]), self._load("res", self._res[part])
        truth = self._buffer("truth")[: ref.numel()]
        if self._truth is None:
            truth.copy_(ref)
        else:
            self._load("truth", self._truth[part])
        error, eager = (self._buffer(name)[: ref.numel()] for name in ("error", "eager"))
        unknown = None
        if not math.isfinite(float(ref.dot(ref) + res.dot(res) + truth.dot(truth))):
            unknown = self._without_non_finite(part, ref, res, truth, pattern)
        torch.sub(res, truth, out=error)
        torch.sub(ref, truth, out=eager)
        if unknown is not None:
            error.masked_fill_(unknown[1], 0.0)
            eager.masked_fill_(unknown[0], 0.0)
            ref.masked_fill_(unknown[2], 0.0)
            res.masked_fill_(unknown[2], 0.0)
        return ref, res, truth, error

    def _without_non_finite(
        self, part: Selection, ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, pattern: Pattern
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Count disagreements, replace non-finite values by zero, tell which errors must not be counted."""
        ref_known, res_known = ref.isfinite(), res.isfinite()
        both = ref_known & res_known
        nan_agrees = ref.isnan() & res.isnan()
        differs = ~(both | (ref == res) | nan_agrees)
        truth_known = truth.isfinite()
        if self._truth is None:
            wrong, excused = differs, torch.zeros_like(differs)
        else:
            excused = differs & self._truth_sides_with(res, truth)
            wrong = differs & ~excused
            # A finite value beyond the range of the dtype would swamp the sums of squares.
            if self._dtype not in (torch.float64, torch.complex128):
                truth.clamp_(
                    -2 * self._precision.largest * self._scale, 2 * self._precision.largest * self._scale
                )
        gained, lost = wrong & ref_known, wrong & ~ref_known
        for name, mask in (
            ("gained", gained),
            ("lost", lost),
            ("excused", excused),
            ("both_nan", nan_agrees),
        ):
            found = int(mask.sum())
            setattr(pattern, name, getattr(pattern, name) + found)
            if found and name not in pattern.first:
                offset = int(mask.to(torch.uint8).argmax())
                pattern.first[name] = self._walk.index_of(part, offset // 2 if self._complex else offset)
        # Where the truth is not finite and both sides are, eager stands in for it.
        torch.where(truth_known, truth, torch.where(both, ref, 0.0), out=truth)
        judged = truth_known | both
        no_eager, no_compiled = ~(judged & ref_known), ~(judged & res_known)
        pattern.eager_count += int(no_eager.sum())
        pattern.compiled_count += int(no_compiled.sum())
        for values, known in ((ref, ref_known), (res, res_known)):
            values.masked_fill_(~known, 0.0)
        return no_eager, no_compiled, ~both

    def _truth_sides_with(self, res: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Whether the truth, rounded to the dtype, is finite, infinite or NaN as the compiled side is."""
        real = self._ref.real.dtype if self._complex else self._dtype
        rounded = (truth / self._scale).to(real).to(torch.float64)
        agrees = (res.isfinite() & rounded.isfinite()) | (res == rounded) | (res.isnan() & rounded.isnan())
        # At the edge of the range an error of a few ulp decides between the largest number and infinity.
        edge = truth.abs() >= self._precision.largest * self._scale * (1 - 8 * self._precision.eps)
        return agrees | (edge & ~res.isnan() & (res.sign() == truth.sign()) & truth.isfinite())

    def _buffer(self, name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.empty(self._size, dtype=dtype, device=self._device)
        return self._buffers[name]

    def _load(self, name: str, block: torch.Tensor) -> torch.Tensor:
        """A block in row-major order as float64 in the buffer of that name; complex numbers as pairs."""
        numbers = block.numel() * (2 if self._complex else 1)
        values = self._buffer(name)[:numbers]
        shaped = torch.view_as_complex(values.view(-1, 2)) if self._complex else values
        if block.dtype is torch.float16 and block.device.type == "cpu":
            # By way of float32 three times as fast: 63 against 200 µs for 512 Ki elements.
            single = self._buffer("single", torch.float32)[:numbers].view(block.shape)
            block = single.copy_(block)
        shaped.view(block.shape).copy_(block)
        return values if self._scale == 1.0 else values.mul_(self._scale)


def _scale_for(statistics: Statistics) -> float:
    """Return a power of two that brings squares of float64 values back into range, 1 where they are."""
    size = max(statistics.rms_truth, statistics.max_abs)
    if not size < 1e140:
        return 1.0 / _FAR
    return _FAR if 0.0 < size < 1e-140 else 1.0
