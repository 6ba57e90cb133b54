"""`trace(verify=True)`: each call also runs eagerly, and the judge compares the effects of the two runs.

Eager runs first, in place: everything that the call can reach (`state/`) keeps its identity, with clones for
tensors, and is restored afterwards. The captured run is second, from the same state of the random
generators. So the caller sees the effects of the call once, and no gradient of the caller's is changed. The
output of eager is dropped. Iterators cannot be restored, and are named once by a `VerifyWarning`; effects
outside of Python are not undone.

A call costs twice its time, and a copy of all tensors that it can reach: it is for tests and debugging, not
for training a large model.
"""

from __future__ import annotations

import contextlib
import io
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.runtime.wrapping import TracedModule, WrappedFunction
from torchrepro.frontend.trace.fakes import tensors_in
from torchrepro.judge.execute import Run, named_state
from torchrepro.judge.models import compare_runs, eager_randomness, verdict_of_comparison
from torchrepro.judge.reference import without_compilers
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import AccuracyError, TorchReproError
from torchrepro.second_opinion.explanation import Agreement
from torchrepro.state.snapshot import State, describe_state, in_state, python_state
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state

_IDENTITY: Any = object.__eq__


class _Running(threading.local):
    side: Callable[[_Check], Callable[..., Any]] | None = None
    """During a verified call: chooses the side to run for a verified function that it calls."""


_running = _Running()


class VerifyWarning(UserWarning):
    """The call reaches an iterator, which the eager run uses up in addition to the captured run."""


def verified(target: Any, traced: Any) -> Any:
    """Return `traced`, compared on each call with `target`; `AccuracyError` names the first difference."""
    if isinstance(traced, TracedModule):
        return VerifiedModule(target, traced._settings)
    return VerifiedFunction(target, traced)


class VerifiedFunction(WrappedFunction):
    """A captured function that is compared with the original."""

    word = "verified"

    def __init__(self, target: Any, traced: Any) -> None:
        super().__init__(target)
        self._check = _Check(target, traced)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._check(args, kwargs)


class VerifiedModule(TracedModule):
    """A captured module that is compared with the original."""

    def __init__(self, module: torch.nn.Module, settings: Settings) -> None:
        super().__init__(module, settings)
        self.__dict__["_check"] = _Check(module, super().forward)

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._check(args, kwargs)


class _Check:
    """One target and its captured form."""

    def __init__(self, target: Any, traced: Callable[..., Any]) -> None:
        self._target = target
        self._traced = traced
        self._told: dict[str, None] = {}
        """What cannot be restored, in the order of its first occurrence."""

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if _running.side is not None:
            # A call inside a verified call is part of that one.
            return _running.side(self)(*args, **kwargs)
        live = State.of(self._target, args, kwargs)
        self._warn_about(live.opaque)
        clones, start = live.cloned(), capture_rng_state()
        plain = _running_as(lambda check: check._target)
        with in_state(clones, live), plain, without_compilers(), _silence():
            eager = self._outcome(self._target, clones.args, clones.kwargs)
        restore_rng_state(start)
        with eager_randomness(), _running_as(lambda check: check._traced):
            captured = self._outcome(self._traced, args, kwargs)
        self._compare(eager, captured)
        if captured.error is not None:
            raise captured.error
        return captured.result

    def _outcome(self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outcome:
        return outcome_of(self._target, args, kwargs, lambda: call(*args, **kwargs))

    def _warn_about(self, opaque: Sequence[str]) -> None:
        new = [path for path in opaque if path not in self._told]
        self._told.update(dict.fromkeys(new))
        if new:
            warnings.warn(
                f"verify runs {_name(self._target)} twice, and cannot put an iterator back: {', '.join(new)}",
                VerifyWarning,
                stacklevel=4,
            )

    def _compare(self, eager: Outcome, captured: Outcome) -> None:
        name = _name(self._target)
        if isinstance(captured.error, TorchReproError):
            raise captured.error
        if type(eager.error) is not type(captured.error):
            raised, who = (eager, "run eagerly") if eager.error is not None else (captured, "captured")
            told = f"{name} raises only when {who}: {type(raised.error).__name__}: {raised.error}"
            raise AccuracyError(told) from raised.error
        comparison = compare_runs(eager.run, captured.run, None, rule=Rule())
        if not comparison:
            first, more = comparison.differing[0], len(comparison.differing) - 1
            size = f", by {first.max_abs:.3g} at most" if first.max_abs else ""
            told = f"{name} is not what eager gives: {first}{size}" + (f" (and {more} more)" if more else "")
            if self._told:
                told += f"; iterators were used up twice, which may be why: {', '.join(self._told)}"
            raise AccuracyError(told, verdict_of_comparison(comparison)) from captured.error
        pairs = zip(tensors_in(eager.result), tensors_in(captured.result), strict=False)
        if any(right.requires_grad and not found.requires_grad for right, found in pairs):
            raise AccuracyError(f"what {name} gives requires no gradient, which it does in eager")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """All that a caller sees of one call, so that two calls of a function can be compared."""

    result: Any
    error: Exception | None
    run: Run

    @property
    def raised(self) -> str:
        """The error in one line; empty if there is none."""
        if self.error is None:
            return ""
        first = str(self.error).partition("\n")[0]
        return f"{type(self.error).__name__}: {first}" if first else type(self.error).__name__


def outcome_of(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[[], Any]
) -> Outcome:
    """Run a call and return its effects; `target` has the state that it may have changed."""
    result, error = None, None
    try:
        result = call()
    except Exception as raised:
        error = raised
    seen = describe_state(target, tuple(args), kwargs)
    tensors = frozenset(seen.tensors)
    run = Run(outputs=_shown(result, {}), state=seen.tensors, changed=tensors, python=seen.data)
    return Outcome(result, error, run)


def agreement(who: str, eager: Outcome, other: Outcome) -> Agreement:
    """Compare a call with Python's by the judge; errors are the same if they are of one type."""
    if type(eager.error) is not type(other.error):
        theirs, pythons = (f"raised {each.raised}" if each.error else "returned" for each in (other, eager))
        return Agreement(who, False, f"it {theirs}, where Python {pythons}")
    compared = compare_runs(eager.run, other.run, None, rule=Rule())
    return Agreement(who, bool(compared), "" if compared else str(compared))


def _shown(value: Any, seen: dict[int, Any]) -> Any:
    """Return a form of a value to compare with its copy's: modules as their state, objects by their class."""
    if isinstance(value, torch.Tensor | int | float | complex | str | bytes | None):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = f"<{type(value).__qualname__} again>"
    kind: Any = type(value)
    shown: Any = value
    if isinstance(value, torch.nn.Module):
        shown = {**named_state(value), **python_state(value)}
    elif isinstance(value, torch.Generator):
        shown = value.get_state()
    elif kind in (list, tuple):
        shown = kind(_shown(item, seen) for item in value)
    elif kind is dict:
        shown = {key: _shown(item, seen) for key, item in value.items()}
    elif kind.__eq__ is _IDENTITY and not isinstance(value, types.FunctionType):
        shown = {name: _shown(item, seen) for name, item in getattr(value, "__dict__", {}).items()}
        shown["class"] = kind.__qualname__
    seen[id(value)] = shown
    return shown


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop output and warnings: the captured run repeats them."""
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with out, err, warnings.catch_warnings(record=True):
        yield


@contextlib.contextmanager
def _running_as(side: Callable[[_Check], Callable[..., Any]]) -> Iterator[None]:
    _running.side = side
    try:
        yield
    finally:
        _running.side = None


def _name(target: Any) -> str:
    return getattr(target, "__qualname__", type(target).__qualname__)
