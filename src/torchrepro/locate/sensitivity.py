"""Tell an error that an ill-conditioned computation amplifies from a wrong kernel.

One op is run in float64 on the values that eager gave it, and on values that differ by one rounding. In
float64 only the conditioning shows: no rounding of the computation itself is of that size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch

from torchrepro.cut.windows import alone, windows_of
from torchrepro.execute.judge_repro import Prepared, truth_of
from torchrepro.judge.leaves import tensors_in
from torchrepro.judge.randomness import Draws, RecordRandom
from torchrepro.judge.reference import without_compilers
from torchrepro.locate.watched_graph import OF_VALUES, Watching, op_of
from torchrepro.locate.wrong_values import steepest
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import GuiltyOp, Sensitivity, Way
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.ops import plain_op_name


def nudged(inputs: tuple[Any, ...], seed: int, eps: float | None = None) -> tuple[Any, ...]:
    """The inputs with each floating number changed by one rounding of its dtype, up or down.

    `eps` is another relative change, for inputs that have been widened. The same object stays one object;
    integers and what holds no numbers stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[int, Any] = {}
    return tuple(made.setdefault(id(item), _nudged(item, generator, eps)) for item in inputs)


def rounding_of(dtype: torch.dtype) -> float:
    """The relative distance of neighbouring numbers."""
    return torch.finfo(dtype.to_real() if dtype.is_complex else dtype).eps


def can_be_nudged(value: Any) -> bool:
    """Whether it holds floating numbers that can be changed one by one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return False
    return value.is_floating_point() or value.is_complex()


def _nudged(value: Any, generator: torch.Generator, eps: float | None) -> Any:
    if not can_be_nudged(value):
        return value
    step = rounding_of(value.dtype) if eps is None else eps
    signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1).to(value.device)
    wide = torch.complex128 if value.is_complex() else torch.float64
    with torch.no_grad():
        changed = value.detach().to(wide) * (1 + step * signs)
        return changed.to(value.dtype).requires_grad_(value.requires_grad)


_DRAWS = 4
_SMALLEST = 1e-10
"""The smallest change that stands out from the rounding of float64 itself."""


@dataclass(frozen=True, slots=True)
class Response:
    """The largest of several random changes."""

    eps: float = 0.0
    """The relative change of the inputs; 0 where nothing can be changed: no floating numbers."""
    change: float = 0.0
    """The relative change of the result (root mean squares); infinite where a result of zero changes."""
    moved: int = 0
    """Elements of the result that changed at all, in the draw in which most did."""
    elements: int = 0
    discrete: bool = False
    """The result holds integers or truth values: it changes in jumps."""
    zero: bool = False
    """The result is zero everywhere."""

    @property
    def factor(self) -> float:
        return self.change / self.eps if self.eps else 0.0


def response_of(repro: Repro) -> Response:
    """Run a graph in float64 on its inputs and on inputs that are changed by a rounding."""
    repro = replace(repro, backward=False, earlier=())
    eps = max((rounding_of(value.dtype) for value in repro.inputs if can_be_nudged(value)), default=0.0)
    if not eps:
        return Response()
    eps = max(eps, _SMALLEST)
    prepared = Prepared(repro)
    random = RecordRandom()
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    with same_randomness(start), without_compilers(), random:
        graph = prepared.graph()
        prepared.observe(graph, graph, prepared.inputs())
    wide = tuple(_widened(value) for value in repro.inputs)
    results = _results(repro, wide, random.draws)
    found = [
        _compared(results, _results(repro, nudged(wide, seed, eps), random.draws), eps)
        for seed in range(_DRAWS)
    ]
    largest = max(found, key=lambda each: each.change)
    return replace(largest, moved=max(each.moved for each in found))


def _results(repro: Repro, inputs: tuple[Any, ...], draws: Draws) -> list[torch.Tensor]:
    run, _ = truth_of(Prepared(replace(repro, inputs=inputs)), draws)
    return [tensor.detach() for _, tensor in tensors_in(run.outputs)]


def _compared(before: list[torch.Tensor], after: list[torch.Tensor], eps: float) -> Response:
    change = 0.0
    moved = elements = 0
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape:
            continue
        was, now = (tensor.to(_wide(tensor)) for tensor in (one, other))
        known = was.isfinite() & now.isfinite()
        moved += int((was != now)[known].sum())
        elements += one.numel()
        size, distance = float(was[known].abs().norm()), float((now - was)[known].abs().norm())
        if distance:
            change = max(change, distance / size if size else float("inf"))
    discrete = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in before)
    return Response(eps, change, moved, elements, discrete, not any(bool(tensor.any()) for tensor in before))


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _widened(value: Any) -> Any:
    return value.detach().to(_wide(value)) if can_be_nudged(value) else value


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
    """At the culprit op; without one, where the error grows most. None for what is not about values."""
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
    return Sensitivity(name, response.factor, words_on(response, act, error, culprit=op is not None))


def words_on(response: Response, act: str, error: float | None, *, culprit: bool) -> str:
    """Say it without the words "condition number". `error`: of the compiled value, relative."""
    if not response.eps:
        return "it reads no floating numbers: rounding explains nothing here" + _verdict(culprit)
    if not response.moved:
        return f"a rounding of its operands changes nothing in the result of {act}" + _verdict(culprit)
    if response.discrete:
        share = f"{response.moved:,} of {response.elements:,}"
        return f"{act} decides: a rounding of its operands makes {share} results jump"
    if response.zero:
        return f"all digits cancel in {act}: what is left of the result is rounding"
    times = _times(response.factor)
    if response.factor < _MUCH:
        kernel = "well-conditioned: a rounding stays a rounding, so this is a wrong kernel"
        gathers = f"{act} amplifies rounding {times} and nothing does more: error gathers along the way"
        return kernel if culprit else gathers
    amplified = f"rounding is amplified {times} by {act}"
    explained = _SLACK * response.factor * response.eps
    if culprit and error is not None and error > explained:
        return f"{amplified}, and yet the error is larger than that explains: a wrong kernel"
    return f"{amplified}, which explains the error" if culprit else f"{amplified}: no kernel is wrong"


def act_of(op: str) -> str:
    """`this subtraction` for `aten.sub.Tensor`; for what has no plain word, its name."""
    plain = plain_op_name(op)
    return f"this {_ACTS[plain]}" if plain in _ACTS else plain


def _verdict(culprit: bool) -> str:
    return ", so this is a wrong kernel" if culprit else ""


def _times(factor: float) -> str:
    return f"{float(f'{factor:.2g}'):,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def _alone(watching: Watching, name: str) -> Repro | None:
    for window in windows_of(watching.static, watching.recording):
        for unit in window.instances:
            if name in unit.nodes:
                return alone(watching.static, watching.recording, unit, window)
    return None
