"""Whole calls: each outermost compiled call compared with plain Python (`run --whole`, `watch(whole=True)`).

Graph by graph one cannot see what capture itself got wrong: a side effect that was lost, an error that is no
longer raised. So the call is looked at from outside. The program gets the compiled call's result and side
effects, once.
"""

from __future__ import annotations

import functools
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.catch.judge_whole_call import FinishedCall, judge_call
from torchrepro.catch.session import Sampler, Session, is_checking, looking_away
from torchrepro.catch.settings import OnMismatch
from torchrepro.catch.torch_hooks import CompiledTarget
from torchrepro.judge.clone import clone_inputs, is_lazy
from torchrepro.nouns.errors import AccuracyError, TorchReproError, say
from torchrepro.nouns.repro import Ambient, Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.state.ambient import capture_ambient
from torchrepro.state.snapshot import State, describe_state, in_state
from torchrepro.torch_api.generators import RngState, capture_rng_state
from torchrepro.torch_api.modes import runs_in_plain_python
from torchrepro.torch_api.pytree import tree_flatten, tree_unflatten

CurrentSession = Callable[[], Session | None]
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

_EARLIER = 2
"""Calls before a failed one that its bundle keeps."""

_here = threading.local()


def compared_with_python(
    compiled: types.FunctionType, function: Callable[..., Any], context: Any, current: CurrentSession
) -> Callable[..., Any]:
    """Compare each outermost call of what `torch.compile` returned for `function`.

    Everything that torch and users read from it is there as before; an outer `torch.compile` inlines the
    function itself, as it would without us. Checked on torch 2.11 to 2.15 (`_torchdynamo_wrapper_id`,
    `skip_code`).
    """
    from torchrepro.torch_api.dynamo import skip_code

    calls: WholeCalls | None = None

    def whole_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if getattr(_here, "inside", False) or not (runs_in_plain_python() and not is_checking()):
            return compiled(*args, **kwargs)
        session = current()
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

    # If an outer compiled function calls this one from Python, these frames are not to be compiled for it.
    for ours in (whole_call, runs_in_plain_python, is_checking):
        skip_code(ours.__code__)
    functools.update_wrapper(whole_call, compiled)
    described: Any = whole_call
    described.__wrapped__ = getattr(compiled, "__wrapped__", compiled)
    described._torchdynamo_wrapper_id = id(whole_call)
    return whole_call


class WholeCalls:
    """The calls of one compiled function."""

    def __init__(self, session: Session, target: CompiledTarget) -> None:
        self.session = session
        self._target = target
        self._sampler = Sampler(session)
        self._recent: deque[Arguments | None] = deque(maxlen=_EARLIER)
        self._told: set[Signature] = set()
        """Failures of this function that have been dealt with, by a bundle of a graph or of a call."""

    def call(self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the compiled call; compare it afterwards if the sampler takes it."""
        if not self._sampler.take():
            self._recent.append(None)
            return compiled(*args, **kwargs)
        started = time.monotonic()
        before = self.session.shielded("copy a call's state", lambda: _Before.of(self._target, args, kwargs))
        spent = time.monotonic() - started
        if before is None:
            return compiled(*args, **kwargs)
        kept = len(self.session.kept)
        try:
            outputs = compiled(*args, **kwargs)
        except AccuracyError:
            raise  # our own, of a graph in this call
        except Exception as exc:
            self._finish(before, kept, spent, raised=exc)
            raise
        verdict = self._finish(before, kept, spent, outputs=outputs)
        if verdict is not None and verdict.fails and self.session.settings.on_mismatch is OnMismatch.RAISE:
            raise AccuracyError(str(verdict), verdict)
        return outputs

    def _finish(
        self,
        before: _Before,
        kept: int,
        spent: float,
        *,
        outputs: Any = None,
        raised: Exception | None = None,
    ) -> Verdict | None:
        """Judge the call and keep what failed; the program's own exception is never replaced."""
        started = time.monotonic()

        def judge() -> tuple[FinishedCall, Verdict]:
            call = before.finished(outputs, raised)
            return call, judge_call(call)

        shielded = partial(self.session.shielded, from_interrupts=raised is not None)
        try:
            with looking_away():
                found = shielded("compare a whole call", judge)
                if found is None:
                    return None
                call, verdict = found
                signature = Signature.of(verdict)
                if len(self.session.kept) > kept:  # a graph in this call shows it
                    self._told.add(signature)
                if verdict.fails and signature not in self._told:
                    self._told.add(signature)
                    path = shielded("write a bundle of a whole call", lambda: self._keep(call, verdict))
                    say(f"{verdict}\n  bundle  {path}" if path else f"{verdict} ({self._target.name})")
                return verdict
        finally:
            self._recent.append(before.arguments)
            self._sampler.spent(spent + time.monotonic() - started)

    def _keep(self, call: FinishedCall, verdict: Verdict) -> Path | None:
        with in_state(call.before, call.after):
            return self.session.keep(self._repro(call), verdict, f"whole call of {self._target.name}")

    def _repro(self, call: FinishedCall) -> Repro:
        """Return the call as data, in the state from before it, which must be in place now."""
        ambient = replace(capture_ambient(), rng=call.rng.devices)
        found = self._repro_of(call.before.args, call.before.kwargs, ambient)
        earlier = []
        for arguments in self._recent:
            args, kwargs = arguments or (call.before.args, call.before.kwargs)
            other = self._repro_of(args, kwargs, ambient)
            if other.graph.code == found.graph.code:
                earlier.append(other.inputs)
        return replace(
            found, backward=False, earlier=tuple(earlier), notes=(*found.notes, *self._target.notes)
        )

    def _repro_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], ambient: Ambient) -> Repro:
        return repro_of_call(
            self._target.users, args, kwargs, compiler=self._target.compiler, ambient=ambient
        )


@dataclass(frozen=True, eq=False)
class _Before:
    """A call that is about to happen."""

    target: CompiledTarget
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    live: State
    """The contents of what it can reach, as the user has them."""
    cloned: State
    rng: RngState
    arguments: Arguments
    """Its arguments for a bundle of a later call: data is copied, other objects are themselves."""

    @classmethod
    def of(cls, target: CompiledTarget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Before | None:
        _require_one_process()
        live = State.of(target.function, args, kwargs)
        if live.opaque:
            raise TorchReproError(
                f"{target.name} can reach an iterator ({live.opaque[0]}), which plain Python would use up",
                next_step="pass it a list instead, or leave out --whole",
            )
        if any(map(is_lazy, live.tensors())):
            return None  # this call turns lazy modules into others for good; the next one can be compared
        return cls(target, args, kwargs, live, live.cloned(), capture_rng_state(), _data_of(args, kwargs))

    def finished(self, outputs: Any, raised: Exception | None) -> FinishedCall:
        return FinishedCall(
            function=self.target.function,
            before=self.cloned,
            after=self.live.again(),
            rng=self.rng,
            rng_after=capture_rng_state(),
            seen=describe_state(self.target.function, self.args, self.kwargs),
            outputs=outputs,
            raised=raised,
        )


def _data_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Copies of tensors in containers of their own; other objects, a module for one, are not copied."""
    leaves, structure = tree_flatten((args, dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    clones = iter(clone_inputs(tensors))
    copied: Arguments = tree_unflatten(
        [next(clones) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure
    )
    return copied


def _require_one_process() -> None:
    """Ranks that run a call twice, each by its own clock, would wait for one another."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise TorchReproError(
            "whole calls are not compared in a job of several ranks",
            next_step="use --level 4, or run it with one rank",
        )
