"""How much an op amplifies rounding: an ill-conditioned one makes small errors large.

It is run in float64 on the values that eager gave it, and on values that differ by one rounding. The
difference shows only the conditioning, because the rounding of float64 itself is far smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from torchrepro.cut.windows import alone, windows_of
from torchrepro.execute.judge_repro import Prepared, truth_of
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.models import Phase
from torchrepro.judge.op_forms import Draws, RecordRandom
from torchrepro.judge.reference import without_compilers
from torchrepro.locate.watched_graph import OF_VALUES, Watching, op_of
from torchrepro.locate.wrong_values import steepest
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import GuiltyOp, Sensitivity, Way
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.ops import plain_op_name


def eager_results(repro: Repro, random: RecordRandom) -> tuple[Any, ...]:
    prepared = Prepared(repro)
    graph = prepared.graph()
    with without_compilers(), random:
        return tuple(prepared.observe(graph, graph, prepared.inputs()).outputs)


_JOB = "torchrepro.locate.sensitivity:amplification_of"


DRAWS = 4


_SMALLEST = 1e-10
"""The smallest relative change that is well above the rounding of float64 itself."""


_MUCH = 100.0
"""From this amplification on, a computation is ill-conditioned: two decimal digits are lost."""


_SLACK = 8.0
"""Factor for a computation that rounds several times, and not only its operands."""


_ACTS = {
    "subtraction": ("sub", "rsub", "isub"),
    "addition": ("add", "iadd"),
    "multiplication": ("mul",),
    "division": ("div", "truediv"),
    "matrix product": ("mm", "bmm", "matmul", "addmm", "linear"),
}


def find_sensitivity(watching: Watching | None, op: GuiltyOp | None) -> Sensitivity | None:
    """Return the sensitivity of the culprit op, else of where the error grows most; None if not of values."""
    if watching is None or watching.inquiry.verdict.kind not in OF_VALUES:
        return None
    if op is not None and op.way is Way.PIECE:
        return None  # the op fails only together with others
    name = steepest(watching) if op is None else op.node
    found = (
        alone(watching.static, watching.recording, unit, window)
        for window in windows_of(watching.static, watching.recording)
        for unit in window.instances
        if name in unit.nodes
    )
    single = next(found, None)
    if name is None or single is None:
        return None
    factor, eps = None, rounding_of(*single.inputs)
    if eps:
        watching.inquiry.on_step("changing the operands by a rounding")
        factor = watching.inquiry.ran(_JOB, single, compiles=0).result
        if factor is None:
            return None
    culprit, error = op is not None, op.compiled_error if op is not None else None
    explained = factor is None or error is None or error <= _SLACK * factor * eps
    words = words_on(factor, act_of(op_of(watching.nodes[name])), culprit=culprit, explained=explained)
    return Sensitivity(name, factor or 0.0, words)


def words_on(factor: float | None, act: str, *, culprit: bool, explained: bool = True) -> str:
    """Return the amplification as text. `explained`: the error is no larger than it accounts for."""
    if factor is None:
        wrong = ", so this is a wrong kernel" if culprit else ""
        return f"it reads no floating numbers: rounding explains nothing here{wrong}"
    if math.isinf(factor):
        return f"rounding alone decides the result of {act}"
    times = f"{float(f'{factor:.2g}'):,.0f} times" if factor >= 10 else f"{factor:.1f} times"
    if factor < _MUCH:
        if culprit:
            return "well-conditioned: a rounding stays a rounding, so this is a wrong kernel"
        return f"{act} amplifies rounding {times} and nothing does more: error gathers along the way"
    amplified = f"rounding is amplified {times} by {act}"
    if not culprit:
        return f"{amplified}: no kernel is wrong"
    if explained:
        return f"{amplified}, which explains the error"
    return f"{amplified}, and yet the error is larger than that explains: a wrong kernel"


def act_of(op: str) -> str:
    """Return `this subtraction` for `aten.sub.Tensor`; the name of an op that is not in `_ACTS`."""
    plain = plain_op_name(op)
    return next((f"this {act}" for act, names in _ACTS.items() if plain in names), plain)


def nudged(inputs: tuple[Any, ...], seed: int, eps: float | None = None) -> tuple[Any, ...]:
    """Return the inputs with each floating-point number changed by one rounding of its dtype, up or down.

    `eps` is another relative change, for inputs that have been widened. An input that occurs twice stays one
    object; integers and other objects are unchanged.
    """
    generator = torch.Generator().manual_seed(seed)

    def changed(value: Any) -> Any:
        if not _can_be_nudged(value):
            return value
        step = rounding_of(value) if eps is None else eps
        signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1).to(value.device)
        with torch.no_grad():
            moved = _wide(value) * (1 + step * signs)
            return moved.to(value.dtype).requires_grad_(value.requires_grad)

    made: dict[int, Any] = {}
    return tuple(made.setdefault(id(item), changed(item)) for item in inputs)


def amplification_of(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> float:
    """Return the largest amplification of several roundings of the inputs, in float64.

    Norms relative to the result; infinite if a result of zero changes.
    """
    phase("reference")
    with applied_settings(repro.ambient):
        repro = replace(repro, backward=False, earlier=())
        eps = max(rounding_of(*repro.inputs), _SMALLEST)
        random = RecordRandom()
        with same_randomness(capture_rng_state().starting_from(repro.ambient.rng or {})):
            eager_results(repro, random)
        wide = tuple(_wide(value) if _can_be_nudged(value) else value for value in repro.inputs)
        usual = _true_results(repro, wide, random.draws)
        changes = (
            _largest_change(usual, _true_results(repro, nudged(wide, seed, eps), random.draws))
            for seed in range(DRAWS)
        )
        return max(changes) / eps


def rounding_of(*values: Any) -> float:
    """Return the machine epsilon of the coarsest dtype; 0 without floating-point numbers."""
    dtypes = (value.dtype for value in values if _can_be_nudged(value))
    return max((torch.finfo(dtype.to_real()).eps for dtype in dtypes), default=0.0)


def _can_be_nudged(value: Any) -> bool:
    """Return whether it is a tensor of floating-point numbers that can be changed one by one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return False
    return value.is_floating_point() or value.is_complex()


def _true_results(repro: Repro, inputs: tuple[Any, ...], draws: Draws) -> list[torch.Tensor]:
    run, _ = truth_of(Prepared(replace(repro, inputs=inputs)), draws)
    return [_wide(tensor) for _, tensor in tensors_in(run.outputs)]


def _largest_change(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    change = 0.0
    for was, now in zip(before, after, strict=True):
        if was.shape == now.shape:
            known = was.isfinite() & now.isfinite()
            size, distance = float(was[known].abs().norm()), float((now - was)[known].abs().norm())
            if distance:
                change = max(change, distance / size if size else math.inf)
    return change


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
