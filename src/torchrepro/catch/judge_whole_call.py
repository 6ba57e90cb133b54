"""The verdict on a whole compiled call: plain Python runs the same call from the same state, and is compared.

The compiled call has happened and is not repeated. Each plain run meets the state from before it, on clones,
and leaves everything as the compiled call left it, the random generators included.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchrepro.judge.clone import precision_for
from torchrepro.judge.execute import Run, is_out_of_memory, verdict_of
from torchrepro.judge.models import (
    compare_runs,
    run_in_fp64,
    verdict_of_comparison,
    verdict_without_eager,
    without_compilers,
)
from torchrepro.judge.randomness import Draws, RecordRandom
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Comparison, Kind, Verdict
from torchrepro.state.snapshot import Description, State, describe_state, running_in
from torchrepro.torch_api.generators import RngState, capture_rng_state, restore_rng_state, same_states


@dataclass(frozen=True, eq=False)
class FinishedCall:
    """A whole compiled call that has happened."""

    function: Callable[..., Any]
    """What was compiled."""
    before: State
    """Clones of all that it could reach, from before it."""
    after: State
    """The same objects as it left them."""
    rng: RngState
    rng_after: RngState
    seen: Description
    """What can be seen after it, objects that it made included."""
    outputs: Any = None
    raised: Exception | None = None


@dataclass(frozen=True, eq=False)
class PlainRun:
    """The same call in plain Python: what was seen of it, or what it raised."""

    rng: RngState
    """The generators after it."""
    run: Run | None = None
    raised: Exception | None = None
    out_of_sight: bool = False
    """Whether it wrote to tensors that were not among the state, whose former contents are unknown."""


def judge_call(call: FinishedCall) -> Verdict:
    """Return whether the compiled call did what plain Python does."""
    try:
        return _judge(call)
    finally:
        restore_rng_state(call.rng_after)


def _judge(call: FinishedCall) -> Verdict:
    recorder = RecordRandom()
    plain = _run_plainly(call, call.rng, recorder)
    if plain.out_of_sight:
        return Verdict(Kind.NOT_COMPARABLE, summary="it writes to tensors that the watch cannot follow")
    if plain.raised is not None:
        return _judge_without_eager(call, plain.raised)
    if call.raised is not None:
        return verdict_of(call.raised)
    assert plain.run is not None
    eager, compiled = _differing(plain.run, Run(call.outputs, state=call.seen.tensors, python=call.seen.data))
    if compare_runs(eager, compiled, None, rule=Rule(strict=True)):
        return Verdict(Kind.PASS, summary="the same as plain Python, bit for bit")
    truth, notes = _truth(call, recorder.draws)
    rule = Rule(blind_dtype=recorder.coarsest_dtype)
    verdict = verdict_of_comparison(compare_runs(eager, compiled, truth, rule=rule)).with_notes(*notes)
    return _if_steady(call, verdict, plain) if verdict.fails else verdict


def _judge_without_eager(call: FinishedCall, raised: Exception) -> Verdict:
    """Plain Python raises, which must show twice before the compiled call is blamed for not doing so."""
    missing = call.raised is None and not is_out_of_memory(raised)
    missing = missing and type(_run_plainly(call, call.rng).raised) is type(raised)
    return verdict_without_eager(raised, missing=missing)


def _if_steady(call: FinishedCall, verdict: Verdict, plain: PlainRun) -> Verdict:
    """Keep the differences in values that plain Python itself gives again.

    If both sides drew the same random numbers, that is asked from the same random state, else from another.
    """
    drew_alike = _same_generators(plain.rng, call.rng_after)
    again = _run_plainly(call, call.rng if drew_alike else _reseeded(call.rng))
    comparison = verdict.comparison
    assert comparison is not None
    assert plain.run is not None
    if again.run is None:
        return Verdict(Kind.NOT_COMPARABLE, summary="non-deterministic: plain Python raises the second time")
    # The noise of atomic additions is granted; whatever changes with the random numbers is left out.
    rule = Rule(strict=not drew_alike)
    repeated = compare_runs(*_differing(plain.run, again.run), None, rule=rule)
    varying = {leaf.path for leaf in repeated.differing}
    steady = Comparison(
        tuple(leaf for leaf in comparison if leaf.same or leaf.path not in varying), comparison.notes
    )
    if steady:
        return Verdict(Kind.NOT_COMPARABLE, summary=f"random or non-deterministic: {verdict.summary}")
    return verdict_of_comparison(steady).with_notes(*verdict.notes)


def _run_plainly(call: FinishedCall, rng: RngState, *around: AbstractContextManager[Any]) -> PlainRun:
    """Run the call once without compilers, on clones of the state from before it."""
    state = call.before.cloned()
    run, raised = None, None
    with running_in(state, call.after) as writes, ExitStack() as stack:
        restore_rng_state(rng)
        for context in (without_compilers(), without_warnings(), *around):
            stack.enter_context(context)
        try:
            run = _observed(call.function, state)
        except Exception as exc:
            raised = exc
        return PlainRun(capture_rng_state(), run, raised, writes.out_of_sight)


def _truth(call: FinishedCall, draws: Draws) -> tuple[Run | None, tuple[str, ...]]:
    """Return the same in float64, or the reason why it cannot be."""
    devices = {tensor.device.type for tensor in call.before.tensors()}
    precision, notes = precision_for(devices)
    state = call.before.cloned(precision.real, precision.device)
    try:
        with running_in(state, call.after), without_warnings():
            restore_rng_state(call.rng)
            found = run_in_fp64(lambda: _observed(call.function, state), draws=draws, precision=precision)
        return found.value, notes + found.notes
    except TorchReproError as exc:
        return None, (f"no float64 reference: {exc}",)


@contextmanager
def without_warnings() -> Iterator[None]:
    """The compiled call has given the program its warnings already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _observed(function: Callable[..., Any], state: State) -> Run:
    outputs = function(*state.args, **state.kwargs)
    seen = describe_state(function, state.args, state.kwargs)
    return Run(_apart(outputs), state=seen.tensors, python=seen.data)


def _apart(value: Any) -> Any:
    """A result in containers of its own: a list that is also part of the state is about to change again."""
    if type(value) in (list, tuple):
        return type(value)(_apart(item) for item in value)
    if type(value) is dict:
        return {key: _apart(item) for key, item in value.items()}
    return value


def _differing(ref: Run, res: Run) -> tuple[Run, Run]:
    """Return the two runs without the state that is the same in both, which is nearly all of it."""
    tensors = [
        key for key in ref.state if key in res.state and not _same_bits(ref.state[key], res.state[key])
    ]
    data = [key for key in ref.python if key in res.python and not _equal(ref.python[key], res.python[key])]

    def reduced(run: Run) -> Run:
        state, python = (
            {key: table[key] for key in keys} for keys, table in ((tensors, run.state), (data, run.python))
        )
        return replace(run, state=state, changed=frozenset(state), python=python)

    return reduced(ref), reduced(res)


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first is second:
        return True
    alike = type(first) is type(second) and first.dtype is second.dtype and first.shape == second.shape
    if not alike or first.layout is not torch.strided or first.device != second.device:
        return False
    try:
        return torch.equal(first, second)
    except RuntimeError:  # a dtype or a subclass without a comparison: the judge knows more
        return False


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray) and first.dtype == second.dtype and np.array_equal(first, second)
        )
    return type(first) is type(second) and bool(first == second)


def _same_generators(first: RngState, second: RngState) -> bool:
    numpy = first.numpy is None or second.numpy is None or str(first.numpy) == str(second.numpy)
    return same_states(first.devices, second.devices) and numpy and first.python == second.python


def _reseeded(state: RngState) -> RngState:
    """Another state of all generators; they stand in it afterwards."""
    restore_rng_state(state)
    torch.manual_seed(torch.initial_seed() + 1)
    random.seed(random.random())
    if "numpy" in sys.modules:
        np.random.seed(random.getrandbits(32))
    return capture_rng_state()
