"""The failure in words, and as an assertion that fails now and passes once the compiler is fixed."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

import torch

from torchrepro.nouns.probe import FINDINGS
from torchrepro.nouns.repro import SOURCE_TRUST, Compiler
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.script.layout import WIDTH

# The tolerances of torch.testing, which apply where a script gives none.
_DEFAULTS = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
_CLEAR = 4.0
"""The error is this many times the tolerance at least: other machines round a little differently."""
_MESSAGE = 120
_NOISE = 8.0
"""The tolerance is this many times eager's own error at least."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What the assertion looks at: one leaf of the comparison, and how it was judged."""

    leaf: LeafComparison
    dtype: torch.dtype | None = None
    not_numbers: bool = False
    """Whether NaNs may stand in both results."""
    strict: bool = False
    tolerance: float | None = None
    limits: tuple[float, float] | None = None
    """(rtol, atol), where they are known already."""


def worst_leaf(verdict: Verdict) -> LeafComparison | None:
    """Return the leaf to compare: the most informative one of those that differ."""
    comparison: Comparison | None = verdict.comparison
    if comparison is None or not comparison.differing:
        return None
    return comparison.worst


def assertion(compared: Compared, actual: str, expected: str) -> str:
    """Return the statement that fails as long as the compiler is wrong."""
    if compared.leaf.difference is Difference.TYPE:
        return f"assert type({actual}) is type({expected})"
    words = [_widened(actual, compared.dtype), _widened(expected, compared.dtype)]
    chosen = tolerances(compared)
    if chosen is not None:
        words += [f"rtol={_number(chosen[0])}", f"atol={_number(chosen[1])}"]
    if compared.not_numbers:
        words.append("equal_nan=True")
    if compared.leaf.difference is Difference.STRIDE:
        words.append("check_stride=True")
    return f"torch.testing.assert_close({', '.join(words)})"


def tolerances(compared: Compared) -> tuple[float, float] | None:
    """Return (rtol, atol) between rounding and the observed error; None where torch's defaults suffice."""
    leaf, dtype = compared.leaf, compared.dtype
    if compared.limits is not None:
        return compared.limits
    if compared.strict:
        return 0.0, 0.0
    if compared.tolerance is not None:
        return compared.tolerance, compared.tolerance
    real = dtype.to_real() if dtype is not None and dtype.is_complex else dtype
    if leaf.difference is not Difference.VALUE or real not in _DEFAULTS:
        return None
    error, size = _error_and_size(leaf)
    if not math.isfinite(error) or error == 0.0:
        return None
    relative, absolute = _DEFAULTS[real]
    granted, noise = absolute + relative * size, leaf.rmse_ref or 0.0
    if error >= _CLEAR * granted and granted >= _NOISE * noise:
        return None
    if error < _CLEAR * absolute or leaf.elements <= 1 or size == 0.0:
        return 0.0, _one_digit(error / 2)
    return _one_digit(error / size / 2), absolute


def sentence(compiler: Compiler, verdict: Verdict) -> str:
    """Return one sentence that says what goes wrong."""
    shown = str(compiler).removeprefix(f"{SOURCE_TRUST}:")  # the script defines it, under this name
    who = "torch.compile" if compiler.name == "inductor" else f"torch.compile with {shown}"
    raised = verdict.raised
    match verdict.kind:
        case Kind.COMPILE_ERROR | Kind.RUN_ERROR if raised is not None:
            whose = who if verdict.kind is Kind.COMPILE_ERROR else f"Code compiled by {who}"
            return f"{whose} raises {shortened(str(raised), _MESSAGE)}"
        case Kind.OUT_OF_MEMORY:
            return f"{who} runs out of memory, eager does not"
        case Kind.CRASH:
            return f"The process dies in code of {who} ({verdict.signal}), eager is fine"
        case Kind.HANG:
            return f"{who} does not terminate, eager does"
        case Kind.MISSING_ERROR if raised is not None:
            return f"Eager raises {shortened(str(raised), _MESSAGE)}, {who} does not"
    if verdict.kind in FINDINGS:
        return f"{who} {FINDINGS[verdict.kind]} ({shortened(verdict.summary, _MESSAGE)})"
    leaf = worst_leaf(verdict)
    return f"{who} {_difference(leaf)}" if leaf is not None else f"{who}: {verdict.summary}"


def _difference(leaf: LeafComparison) -> str:
    what = {
        "grad": "gives a wrong gradient",
        "inputs": "leaves an input in a wrong state",
        "state": "leaves a buffer in a wrong state",
        "python": "loses a side effect",
    }.get(leaf.where.part, "gives a wrong result")
    if leaf.difference in (Difference.VALUE, Difference.NON_FINITE) and leaf.res_value:
        truth = f" (float64: {leaf.truth_value})" if _tells_more(leaf) else ""
        return f"{what}: {leaf.res_value}, where eager gives {leaf.ref_value}{truth}"
    return f"{what}: {leaf.detail or leaf.difference.value}"


def raised_comment(verdict: Verdict) -> str:
    """Return how the failing call ends, as the text of a comment behind it."""
    match verdict.kind:
        case Kind.CRASH:
            return verdict.signal or "the process dies"
        case Kind.HANG:
            return "does not terminate"
        case Kind.OUT_OF_MEMORY:
            return "runs out of memory"
    return shortened(str(verdict.raised), WIDTH) if verdict.raised is not None else ""


def shortened(text: str, width: int) -> str:
    one_line = " ".join(text.split())
    return textwrap.shorten(one_line, width, placeholder=" ...") or one_line[:width]


def _error_and_size(leaf: LeafComparison) -> tuple[float, float]:
    """Return the error of the worst element, and the magnitude of eager's value there."""
    try:
        expected, actual = complex(leaf.ref_value), complex(leaf.res_value)
    except ValueError:
        return leaf.max_abs or 0.0, 0.0
    return abs(actual - expected), abs(expected)


def _tells_more(leaf: LeafComparison) -> bool:
    """Return whether the truth is a value other than eager's, not only eager's with more digits."""
    try:
        eager, compiled, truth = (
            complex(text) for text in (leaf.ref_value, leaf.res_value, leaf.truth_value)
        )
    except ValueError:
        return bool(leaf.truth_value) and leaf.truth_value != leaf.ref_value
    return eager == eager and not abs(truth - eager) < abs(compiled - eager) / 100


def _widened(name: str, dtype: torch.dtype | None) -> str:
    """Return the expression, converted where it is float8, which has no arithmetic to compare with."""
    return (
        f"{name}.float()" if dtype is not None and dtype.is_floating_point and dtype.itemsize == 1 else name
    )


def _one_digit(number: float) -> float:
    """Round down to one digit."""
    exponent = math.floor(math.log10(number))
    return float(f"{math.floor(number / 10.0**exponent)}e{exponent}")


def _number(value: float) -> str:
    return "0" if value == 0.0 else repr(value)
