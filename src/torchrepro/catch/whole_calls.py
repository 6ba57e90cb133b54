"""Whole calls: each outermost compiled call compared with plain Python (`run --whole`, `watch(whole=True)`).

Comparing graphs does not show the errors of capture itself: a lost side effect, an error that is no longer
raised. So whole calls are compared: plain Python runs the same call from the same state, on clones, and
leaves everything as the compiled call left it, the random generators included. The program gets the compiled
call's result and side effects, once.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.catch.compiled_target import CompiledTarget
from torchrepro.catch.session import Sampler, Session, current_session, is_checking, looking_away
from torchrepro.catch.settings import OnMismatch
from torchrepro.judge.clone import TensorCloner, is_lazy, precision_for
from torchrepro.judge.compare import same
from torchrepro.judge.execute import Run, verdict_of
from torchrepro.judge.models import (
    Subject,
    compare_runs,
    judge,
    verdict_of_comparison,
    verdict_without_eager,
)
from torchrepro.judge.op_forms import Draws
from torchrepro.judge.reference import run_in_fp64, without_compilers
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import AccuracyError, TorchReproError, say
from torchrepro.nouns.verdict import Comparison, Kind, Signature, Verdict
from torchrepro.state.ambient import capture_ambient
from torchrepro.state.snapshot import State, describe_state, in_state, running_in
from torchrepro.torch_api.generators import RngState, capture_rng_state, restore_rng_state, same_states
from torchrepro.torch_api.modes import runs_in_plain_python
from torchrepro.torch_api.modules import mark_wrapper
from torchrepro.torch_api.pytree import tree_map_only

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

_EARLIER = 2
"""How many calls before a failed one its bundle keeps."""

_here = threading.local()


def compared_with_python(
    compiled: types.FunctionType, function: Callable[..., Any], context: Any
) -> Callable[..., Any]:
    """Compare each outermost call of what `torch.compile` returned for `function`.

    The wrapper has all attributes that torch and users read; an outer `torch.compile` inlines the function
    itself, as it would without the wrapper. Checked on torch 2.11 to 2.15 (`_torchdynamo_wrapper_id`,
    `skip_code`).
    """
    from torchrepro.torch_api.dynamo import skip_code

    calls: WholeCalls | None = None

    def whole_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if getattr(_here, "inside", False) or not (runs_in_plain_python() and not is_checking()):
            return compiled(*args, **kwargs)
        session = current_session()
        if session is None or not session.active or not session.settings.whole:
            return compiled(*args, **kwargs)
        if calls is None or calls.session is not session:
            of_context = partial(CompiledTarget.of, function, context)
            target = session.shielded("watch a compiled function", of_context)
            if target is None:
                return compiled(*args, **kwargs)
            calls = WholeCalls(session, target)
        _here.inside = True
        try:
            return calls.call(compiled, args, kwargs)
        finally:
            _here.inside = False

    # If an outer compiled function calls this one from Python, these frames must not be compiled.
    for ours in (whole_call, runs_in_plain_python, is_checking):
        skip_code(ours.__code__)
    functools.update_wrapper(whole_call, compiled)
    whole_call.__wrapped__ = getattr(compiled, "__wrapped__", compiled)  # type: ignore[attr-defined]
    mark_wrapper(whole_call)
    return whole_call


class WholeCalls:
    """The calls of one compiled function."""

    def __init__(self, session: Session, target: CompiledTarget) -> None:
        self.session = session
        self._target = target
        self._sampler = Sampler(session)
        self._recent: deque[Arguments | None] = deque(maxlen=_EARLIER)
        self._told: set[Signature] = set()
        """Failures of this function that have a bundle of a graph or of a call."""

    def call(self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the compiled call; compare it afterwards if the sampler selects it."""
        if not self._sampler.take():
            self._recent.append(None)
            return compiled(*args, **kwargs)
        started = time.monotonic()
        call = self.session.shielded("copy a call's state", lambda: WholeCall.of(self._target, args, kwargs))
        spent = time.monotonic() - started
        if call is None:
            return compiled(*args, **kwargs)
        kept = len(self.session.kept)
        try:
            outputs = compiled(*args, **kwargs)
        except AccuracyError:
            raise  # raised by the watch, for a graph in this call
        except Exception as exc:
            self._finish(call, kept, spent, None, exc)
            raise
        verdict = self._finish(call, kept, spent, outputs, None)
        if verdict is not None and verdict.fails and self.session.settings.on_mismatch is OnMismatch.RAISE:
            raise AccuracyError(str(verdict), verdict)
        return outputs

    def _finish(
        self, call: WholeCall, kept: int, spent: float, outputs: Any, raised: Exception | None
    ) -> Verdict | None:
        """Judge the call and save a failure; the program's own exception is never replaced."""
        started = time.monotonic()

        def judged() -> Verdict:
            call.finish(outputs, raised)
            return judge_call(call)

        shielded = partial(self.session.shielded, from_interrupts=raised is not None)
        try:
            with looking_away():
                verdict = shielded("compare a whole call", judged)
                if verdict is None:
                    return None
                signature = Signature.of(verdict)
                if len(self.session.kept) > kept:  # a graph in this call shows it
                    self._told.add(signature)
                if verdict.fails and signature not in self._told:
                    self._told.add(signature)
                    path = shielded("write a bundle of a whole call", lambda: self._keep(call, verdict))
                    say(f"{verdict}\n  bundle  {path}" if path else f"{verdict} ({self._target.name})")
                    shielded("search", lambda: self.session.search(path))
                return verdict
        finally:
            self._recent.append(call.arguments)
            self._sampler.spent(spent + time.monotonic() - started)

    def _keep(self, call: WholeCall, verdict: Verdict) -> Path | None:
        """Save the call as a bundle, in the state from before it."""
        target, before = self._target, call.before
        with in_state(before, call.live):
            ambient = replace(capture_ambient(), rng=call.rng.devices)
            as_data = partial(repro_of_call, target.users, compiler=target.compiler, ambient=ambient)
            found = as_data(before.args, before.kwargs)
            others = [as_data(*(arguments or (before.args, before.kwargs))) for arguments in self._recent]
            earlier = tuple(one.inputs for one in others if one.graph.code == found.graph.code)
            notes = (*found.notes, *target.notes)
            repro = replace(found, backward=False, earlier=earlier, notes=notes)
            return self.session.keep(repro, verdict, f"whole call of {target.name}")


@dataclass(eq=False)
class WholeCall:
    """A compiled call: the state that it can reach, before it, and, once it has finished, its effects."""

    target: CompiledTarget
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    live: State
    """The state that it can reach, not cloned; once it has finished, as it left it."""
    before: State
    """Clones of that state, from before it."""
    rng: RngState
    arguments: Arguments
    """Its arguments for a bundle of a later call: tensors are copied, other objects are shared."""
    outputs: Any = None
    raised: Exception | None = None

    @classmethod
    def of(cls, target: CompiledTarget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WholeCall | None:
        """Return the call with its state, before it happens; None if it cannot be compared."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            # Ranks that run a call twice at different times would deadlock.
            raise TorchReproError(
                "whole calls are not compared in a job of several ranks",
                next_step="use --level 4, or run it with one rank",
            )
        live = State.of(target.function, args, kwargs)
        if live.opaque:
            raise TorchReproError(
                f"{target.name} can reach an iterator ({live.opaque[0]}), which plain Python would use up",
                next_step="pass it a list instead, or leave out --whole",
            )
        if any(map(is_lazy, live.tensors())):
            return None  # this call initialises lazy modules; the next one can be compared
        arguments = tree_map_only(torch.Tensor, TensorCloner().clone, (args, dict(kwargs)))
        return cls(target, args, kwargs, live, live.cloned(), capture_rng_state(), arguments)

    def finish(self, outputs: Any, raised: Exception | None) -> None:
        self.live, self.rng_after = self.live.again(), capture_rng_state()
        self.seen = describe_state(self.target.function, self.args, self.kwargs)
        """The visible state after it, new objects included."""
        self.outputs, self.raised = outputs, raised


def judge_call(call: WholeCall) -> Verdict:
    """Return the verdict of comparing the compiled call, which is not repeated, with plain Python."""
    runs = _Runs(call)
    restore_rng_state(call.rng)
    try:
        if call.raised is not None:
            plain = runs.attempt()
            if isinstance(plain, Exception):
                return verdict_without_eager(plain, missing=False)
            return verdict_of(call.raised)
        verdict = judge(Subject(runs.plain, runs.compiled, runs.truth), steady=True)
        compared = verdict.fails and verdict.comparison is not None
        return runs.steady_part_of(verdict) if compared else verdict
    except _OutOfSight as exc:
        return Verdict(Kind.NOT_COMPARABLE, summary=exc.fact)
    finally:
        restore_rng_state(call.rng_after)


class _OutOfSight(TorchReproError):
    """The call writes to tensors outside of the recorded state, whose former contents are unknown."""


class _Runs:
    """Runs of a call that has happened, with only the state in which plain Python differs."""

    def __init__(self, call: WholeCall) -> None:
        self._call = call
        self._first: Run | None = None
        self._rng: RngState | None = None
        """The generators after the first run in plain Python."""

    def plain(self, around: AbstractContextManager[Any]) -> Run:
        """Run the call once without compilers, on clones of the state from before it."""
        call = self._call
        clones = call.before.cloned()
        # The compiled call has already issued these warnings.
        with running_in(clones, call.live) as writes, around, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run = _observed(call.target.function, clones)
            finally:
                if writes.out_of_sight:
                    raise _OutOfSight("it writes to tensors that the watch cannot follow", next_step="")
            rng = capture_rng_state()
        state, data = (
            {key: mine[key] for key in mine if key in its and not same(mine[key], its[key], strict=True)}
            for mine, its in ((run.state, call.seen.tensors), (run.python, call.seen.data))
        )
        run = replace(run, state=state, changed=frozenset(state), python=data, rng=rng.devices)
        self._first, self._rng = self._first or run, self._rng or rng
        return run

    def attempt(self) -> Run | Exception:
        try:
            return self.plain(without_compilers())
        except _OutOfSight:
            raise
        except Exception as exc:
            return exc

    def compiled(self, around: AbstractContextManager[Any]) -> Run:
        """Return the compiled call that has happened as a run."""
        call, first = self._call, self._first
        state = {key: call.seen.tensors[key] for key in (first.state if first else ())}
        python = {key: call.seen.data[key] for key in (first.python if first else ())}
        return Run(call.outputs, state=state, python=python, rng=call.rng_after.devices)

    def truth(self, draws: Draws) -> tuple[Run, tuple[str, ...]]:
        """Return the run in float64; raise if the two sides are equal, bit for bit."""
        call, first = self._call, self._first
        assert first is not None
        if compare_runs(first, self.compiled(nullcontext()), None, rule=Rule(strict=True)):
            raise TorchReproError("the same as plain Python, bit for bit", next_step="")
        precision, notes = precision_for({tensor.device.type for tensor in call.before.tensors()})
        state = call.before.cloned(precision.real, precision.device)
        with running_in(state, call.live), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run_in_fp64(
                lambda: _observed(call.target.function, state), draws=draws, precision=precision
            )
        return found.value, notes + found.notes

    def steady_part_of(self, verdict: Verdict) -> Verdict:
        """Return the verdict on the differences that remain when plain Python is run again.

        If both sides drew the same random numbers, it is run from the same random state, else from another.
        """
        first, rng = self._first, self._rng
        assert first is not None
        assert rng is not None
        drew_alike = _same_generators(rng, self._call.rng_after)
        restore_rng_state(self._call.rng)
        if not drew_alike:
            _reseed()
        again = self.attempt()
        if isinstance(again, Exception):
            summary = "non-deterministic: plain Python raises the second time"
            return Verdict(Kind.NOT_COMPARABLE, summary=summary)
        # The noise of atomic additions is tolerated; values that vary with the random numbers are left out.
        repeated = compare_runs(first, again, None, rule=Rule(strict=not drew_alike))
        varying = {leaf.path for leaf in repeated.differing}
        comparison = verdict.comparison
        assert comparison is not None
        kept = tuple(leaf for leaf in comparison if leaf.same or leaf.path not in varying)
        steady = Comparison(kept, comparison.notes)
        if steady:
            return Verdict(Kind.NOT_COMPARABLE, summary=f"random or non-deterministic: {verdict.summary}")
        return verdict_of_comparison(steady).with_notes(*verdict.notes)


def _observed(function: Callable[..., Any], state: State) -> Run:
    outputs = function(*state.args, **state.kwargs)
    seen = describe_state(function, state.args, state.kwargs)
    return Run(_apart(outputs), state=seen.tensors, python=seen.data)


def _apart(value: Any) -> Any:
    """Return a result with copied containers: a list that is part of the state is about to change again."""
    if type(value) in (list, tuple):
        return type(value)(_apart(item) for item in value)
    if type(value) is dict:
        return {key: _apart(item) for key, item in value.items()}
    return value


def _same_generators(first: RngState, second: RngState) -> bool:
    numpy = first.numpy is None or second.numpy is None or str(first.numpy) == str(second.numpy)
    return same_states(first.devices, second.devices) and numpy and first.python == second.python


def _reseed() -> None:
    torch.manual_seed(torch.initial_seed() + 1)
    random.seed(random.random())
    if "numpy" in sys.modules:
        np.random.seed(random.getrandbits(32))
