"""Sensitivity: is the error a rounding that the computation amplifies, or is a kernel wrong?

One op is run in float64 on the values that eager gave it, and on values that differ by a rounding.
"""

from __future__ import annotations

import re

import msgspec

from torchrepro.cut.failing_windows import alone
from torchrepro.cut.windows import windows_of
from torchrepro.locate.conditioning import Response
from torchrepro.locate.error_growth import steepest
from torchrepro.locate.node_origin import op_of
from torchrepro.locate.watched_graph import OF_VALUES, Watching
from torchrepro.nouns.located import GuiltyOp, Sensitivity, Way
from torchrepro.nouns.repro import Repro

_JOB = "torchrepro.locate.op_jobs:sensitivity"
_MUCH = 100.0
"""Amplification from which on a computation is ill-conditioned: two decimal digits are lost."""
_SLACK = 8.0
"""A computation rounds several times, and not only its operands."""
_ACTS = {
    "sub": "subtraction",
    "rsub": "subtraction",
    "isub": "subtraction",
    "add": "addition",
    "iadd": "addition",
    "mul": "multiplication",
    "div": "division",
    "truediv": "division",
    "sum": "sum",
    "mean": "mean",
    "mm": "matrix product",
    "bmm": "matrix product",
    "matmul": "matrix product",
    "addmm": "matrix product",
    "linear": "matrix product",
    "exp": "exponential",
    "log": "logarithm",
    "pow": "power",
}


def find_sensitivity(watching: Watching | None, op: GuiltyOp | None) -> Sensitivity | None:
    """At the guilty op; without one, where the error grows most. None for what is not about values."""
    if watching is None or watching.inquiry.verdict.kind not in OF_VALUES:
        return None
    if op is not None and op.way is Way.PIECE:
        return None  # it is not this op by itself
    name = steepest(watching) if op is None else op.node
    single = None if name is None else _alone(watching, name)
    if name is None or single is None:
        return None
    watching.inquiry.on_step("changing the operands by a rounding")
    outcome = watching.inquiry.ran(_JOB, single, compiles=0)
    if outcome.result is None:
        return None
    response = msgspec.convert(outcome.result, Response)
    error = watching.seen[name].compiled if op is None and name in watching.seen else None
    error = op.compiled_error if op is not None else error
    act = act_of(op_of(watching.nodes[name]))
    return Sensitivity(name, response.factor, words_on(response, act, error, guilty=op is not None))


def words_on(response: Response, act: str, error: float | None, *, guilty: bool) -> str:
    """For who does not know what a condition number is. `error`: of the compiled value, relative."""
    if not response.eps:
        return "it reads no floating numbers: rounding explains nothing here" + _verdict(guilty)
    if not response.moved:
        return f"a rounding of its operands changes nothing in the result of {act}" + _verdict(guilty)
    if response.discrete:
        share = f"{response.moved:,} of {response.elements:,}"
        return f"{act} decides: a rounding of its operands makes {share} results jump"
    if response.zero:
        return f"all digits cancel in {act}: what is left of the result is rounding"
    times = _times(response.factor)
    if response.factor < _MUCH:
        kernel = "well-conditioned: a rounding stays a rounding, so this is a wrong kernel"
        gathers = f"{act} amplifies rounding {times} and nothing does more: error gathers along the way"
        return kernel if guilty else gathers
    amplified = f"rounding is amplified {times} by {act}"
    explained = _SLACK * response.factor * response.eps
    if guilty and error is not None and error > explained:
        return f"{amplified}, and yet the error is larger than that explains: a wrong kernel"
    return f"{amplified}, which explains the error" if guilty else f"{amplified}: no kernel is wrong"


def act_of(op: str) -> str:
    """`this subtraction` for `aten.sub.Tensor`; for what has no plain word, its name."""
    parts = [part for part in op.split(".") if part]
    packet = parts[1] if parts[0] in ("aten", "prims") and len(parts) > 1 else parts[-1]
    plain = re.sub(r"_+$", "", packet)
    return f"this {_ACTS[plain]}" if plain in _ACTS else plain


def _verdict(guilty: bool) -> str:
    return ", so this is a wrong kernel" if guilty else ""


def _times(factor: float) -> str:
    return f"{float(f'{factor:.2g}'):,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def _alone(watching: Watching, name: str) -> Repro | None:
    for window in windows_of(watching.static, watching.recording):
        for unit in window.instances:
            if name in unit.nodes:
                return alone(watching.static, watching.recording, unit, window)
    return None
