"""Judge a compiled model against eager: is it as close to the truth as eager is?

The order matters. Eager runs first, twice from the same random state: what does not agree with itself cannot
be compared with anything. Then the same computation in float64, which is the truth both are measured by. The
compiled one runs last, because it is the one that may crash, hang or exhaust the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.judge.clone import clone_inputs, clone_module
from torchrepro.judge.compare import same
from torchrepro.judge.execute import Run, named_state, observe_call, run_fwd_maybe_bwd
from torchrepro.judge.leaves import tensors_in
from torchrepro.judge.raised import describe, is_out_of_memory, verdict_of
from torchrepro.judge.randomness import Draws, RecordRandom
from torchrepro.judge.reference import run_in_fp64, without_compilers
from torchrepro.judge.rule import Rule
from torchrepro.judge.wide_tensors import precision_for
from torchrepro.nouns.errors import ReferenceError64, TorchReproError
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.torch_api.generators import (
    RngState,
    capture_rng_state,
    restore_rng_state,
    same_randomness,
    same_states,
)

Phase = Callable[[str], None]
"""Told what is about to run, so that a crash or a hang can be put down to it."""


class Phases:
    """Passes phases on and remembers the last."""

    def __init__(self, report: Phase = lambda name: None) -> None:
        self._report = report
        self.last = ""

    def __call__(self, name: str) -> None:
        self.last = name
        self._report(name)


@dataclass(frozen=True)
class Subject:
    """A computation that can be run afresh, any number of times, without one run touching the next.

    Each way to run it is given a context to enter around the call itself, but not around building or copying
    the model: those may draw random numbers as well. `truth` is the run in float64, with the random draws to
    replay, and returns notes as well; None where there is to be none.
    """

    eager: Callable[[AbstractContextManager[Any]], Run]
    compiled: Callable[[AbstractContextManager[Any]], Run]
    truth: Callable[[Draws], tuple[Run, tuple[str, ...]]] | None = None


def same_two_models(
    gm: Callable[..., Any],
    opt_gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    only_fwd: bool = False,
    *,
    kwargs: Mapping[str, Any] | None = None,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
    strict: bool = False,
    cos_similarity: bool = False,
    tol: float | None = None,
    equal_nan: bool = True,
) -> Comparison:
    """Compare two models on the same inputs, with float64 as the truth; true exactly when they are the same.

    An exception of either side is a difference of its own, never "same".
    """
    rule = Rule(
        ignore_non_fp=ignore_non_fp,
        strict=strict,
        cos_similarity=cos_similarity,
        tol=tol,
        equal_nan=equal_nan,
    )
    subject = subject_of(gm, opt_gm, tuple(example_inputs), dict(kwargs or {}), only_fwd=only_fwd)
    verdict = judge(subject, rule=rule, require_fp64=require_fp64)
    if verdict.comparison is not None and bool(verdict.comparison) == (verdict.kind is Kind.PASS):
        return replace(verdict.comparison, notes=verdict.comparison.notes + verdict.notes)
    leaf = LeafComparison("", Difference.RAISED, detail=str(verdict), blamed=verdict.blamed)
    return Comparison((leaf,), notes=verdict.notes)


def subject_of(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    only_fwd: bool = False,
) -> Subject:
    """Return a model and its compiled form, on clones of the same inputs."""

    def truth(draws: Draws) -> tuple[Run, tuple[str, ...]]:
        def observe(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
            return observe_call(model, args, kwargs, only_fwd=only_fwd)

        return true_run(observe, eager, args, kwargs, draws)

    return Subject(
        eager=lambda around: run_fwd_maybe_bwd(eager, args, only_fwd, kwargs=kwargs, around=around),
        compiled=lambda around: run_fwd_maybe_bwd(compiled, args, only_fwd, kwargs=kwargs, around=around),
        truth=truth,
    )


def keeping_runs(subject: Subject) -> tuple[Subject, dict[str, Run]]:
    """Return the subject, and a dict that its first runs are put in: `eager`, `compiled` and `truth`."""
    runs: dict[str, Run] = {}

    def keep(side: str, run: Callable[[AbstractContextManager[Any]], Run]) -> Any:
        return lambda around: _kept(side, run(around))

    def truth(draws: Draws) -> tuple[Run, tuple[str, ...]]:
        assert subject.truth is not None
        found, notes = subject.truth(draws)
        return _kept("truth", found), notes

    def _kept(side: str, found: Run) -> Run:
        runs.setdefault(side, found)
        return found

    kept = Subject(
        keep("eager", subject.eager), keep("compiled", subject.compiled), truth if subject.truth else None
    )
    return kept, runs


def true_run(
    observe: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Run],
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    draws: Draws,
) -> tuple[Run, tuple[str, ...]]:
    """`observe` a float64 copy of a model and its inputs in float64, and notes on what was not ideal.

    Parameters and inputs are leaves of their own, so that gradients accumulate in float64. A device without
    float64 sends the run to the CPU.
    """
    given = {**dict(tensors_in(args, "args")), **dict(tensors_in(dict(kwargs), "kwargs"))}
    if isinstance(model, torch.nn.Module):
        given.update(named_state(model))
    precision, notes = precision_for(tensor.device.type for tensor in given.values())
    if isinstance(model, torch.nn.Module):
        model = clone_module(model, dtype=precision.real, device=precision.device)
    args, kwargs = clone_inputs((args, dict(kwargs)), dtype=precision.real, device=precision.device)
    reference = run_in_fp64(lambda: observe(model, args, dict(kwargs)), draws=draws, precision=precision)
    return reference.value, notes + reference.notes


def judge(
    subject: Subject,
    *,
    rule: Rule | None = None,
    require_fp64: bool = False,
    rng: Mapping[str, torch.Tensor] | None = None,
    phase: Phase = lambda name: None,
    steady: bool = False,
) -> Verdict:
    """Judge a subject. The caller's random generators are as they were afterwards.

    `steady`: eager is known to agree with itself, and is run once.
    """
    start = capture_rng_state().starting_from(rng or {})
    phases = phase if isinstance(phase, Phases) else Phases(phase)
    with same_randomness(start):
        return _judge(subject, rule or Rule(), require_fp64, start, phases, steady)


def _judge(
    subject: Subject, rule: Rule, require_fp64: bool, start: RngState, phase: Phases, steady: bool
) -> Verdict:
    phase("eager")
    recorder = RecordRandom()
    eager = _attempt(lambda: subject.eager(_starting_from(start, without_compilers(), recorder)))
    if isinstance(eager, Exception):
        # The recorder is a dispatch mode, under which torch fails on tensors such as a ZeroTensor (#197067).
        recorder = RecordRandom()
        eager = _attempt(lambda: subject.eager(_starting_from(start, without_compilers())))
    if isinstance(eager, Exception):
        return _judge_without_eager(subject, start, eager, phase)
    unsteady, notes = ("", ()) if steady else _steadiness(subject, rule, start, eager)
    truth, reasons = _truth(subject, recorder.draws, require_fp64, start, phase)
    notes += reasons

    phase("compile")
    randomness = eager_randomness() if recorder.is_random else nullcontext()
    compiled = _attempt(lambda: subject.compiled(_starting_from(start, randomness)))
    if isinstance(compiled, Exception):
        # A compilation that began inside the call has ended by now; then the frames tell.
        compiling = True if phase.last == "compile" else None
        return verdict_of(compiled, compiling=compiling).with_notes(*notes)
    phase("compare")
    if unsteady:
        return Verdict(Kind.NOT_COMPARABLE, summary=f"non-deterministic: {unsteady}", notes=notes)
    # Where there is no truth, eager's noise has to be guessed, and mixed precision gives float32 results that
    # have only a half type's digits.
    rule = replace(rule, blind_dtype=recorder.coarsest_dtype)
    verdict = verdict_of_comparison(compare_runs(eager, compiled, truth, rule=rule)).with_notes(*notes)
    if verdict.fails and recorder.is_random:
        return _if_draws_agree(verdict, subject, eager, compiled)
    return verdict


def _attempt(run: Callable[[], Run]) -> Run | Exception:
    """Return the run, or what it raised. An error about the user's input is no result of a run."""
    try:
        return run()
    except TorchReproError:
        raise
    except Exception as exc:
        return exc


def _judge_without_eager(subject: Subject, start: RngState, raised: Exception, phase: Phase) -> Verdict:
    """Eager raises. If the compiled side does not, an error is missing; else nothing can be said."""
    phase("compile")
    runs = not is_out_of_memory(raised) and _attempt(lambda: subject.compiled(_starting_from(start)))
    return verdict_without_eager(raised, missing=isinstance(runs, Run))


def verdict_without_eager(raised: Exception, *, missing: bool) -> Verdict:
    """Return the verdict where eager raises; `missing`: the compiled function does not."""
    described = describe(raised)
    if not missing:
        return Verdict(Kind.INVALID, summary=f"eager itself fails: {described}", raised=described)
    summary = f"eager raises {described}; the compiled function does not"
    return Verdict(Kind.MISSING_ERROR, summary=summary, raised=described)


def _steadiness(subject: Subject, rule: Rule, start: RngState, eager: Run) -> tuple[str, tuple[str, ...]]:
    """Eager against itself, from the same random state: why it cannot be compared, if so, and a note."""
    again = _attempt(lambda: subject.eager(_starting_from(start, without_compilers())))
    if isinstance(again, Exception):
        return f"eager raises the second time: {describe(again)}", ()
    found = compare_runs(eager, again, None, rule=Rule(strict=True))
    if found:
        return "", ()
    noise = f"eager differs from itself: {found}"
    if not compare_runs(eager, again, None, rule=rule):
        return noise, ()
    return "", (f"not bitwise deterministic: {noise}",)


def _truth(
    subject: Subject,
    draws: Draws,
    require_fp64: bool,
    start: RngState,
    phase: Phase,
) -> tuple[Run | None, tuple[str, ...]]:
    """Return the float64 run, or the reason why there is none."""
    if subject.truth is None:
        reason = "no float64 reference: this run was asked to do without"
    else:
        phase("reference")
        restore_rng_state(start)
        try:
            return subject.truth(draws)
        except TorchReproError as exc:
            reason = f"no float64 reference: {exc}"
        except Exception as exc:
            reason = f"no float64 reference: the model fails in float64 ({describe(exc)})"
    if require_fp64:
        raise ReferenceError64(reason, next_step="leave out require_fp64 to judge against eager alone")
    return None, (reason,)


def compare_runs(ref: Run, res: Run, truth: Run | None, *, rule: Rule) -> Comparison:
    """Compare all that a user could see of two runs: results, gradients, mutated inputs, state."""
    changed = ref.changed | res.changed
    names = [name for name in ref.state if name in changed]

    def part(run: Run | None, name: str) -> Any:
        if run is None:
            return None
        if name == "state":
            return {key: run.state.get(key) for key in names}
        return getattr(run, name)

    leaves: list[LeafComparison] = []
    notes: list[str] = []
    for name, path in (
        ("outputs", "out"),
        ("gradients", "grad"),
        ("inputs", "inputs"),
        ("state", "state"),
        ("python", "python"),
    ):
        sides = part(ref, name), part(res, name)
        # What a call has left alone is equal bit for bit, and needs no truth.
        alone = name not in ("outputs", "gradients") and same(
            *sides, rule=replace(rule, strict=True), path=path
        )
        found = alone or same(*sides, part(truth, name), rule=rule, path=path)
        leaves.extend(found.leaves)
        notes.extend(found.notes)
    return Comparison(tuple(leaves), tuple(dict.fromkeys(notes)))


def verdict_of_comparison(comparison: Comparison) -> Verdict:
    """Pass, mismatch or non-finite; a pass in which eager is the wrong one says so."""
    if comparison:
        summary = f"as close to the truth as eager in {len(comparison.leaves)} values"
        if comparison.blamed is Blame.EAGER:
            worst = next(leaf for leaf in comparison.leaves if leaf.blamed is Blame.EAGER)
            summary = f"the compiled result is right, eager is wrong: {worst.path}: {worst.detail}"
        return Verdict(Kind.PASS, summary=summary, comparison=comparison)
    non_finite = any(leaf.difference is Difference.NON_FINITE for leaf in comparison.differing)
    kind = Kind.NON_FINITE if non_finite else Kind.MISMATCH
    return Verdict(kind, summary=str(comparison), comparison=comparison)


def _if_draws_agree(verdict: Verdict, subject: Subject, eager: Run, compiled: Run) -> Verdict:
    """Let a mismatch of a random model count only if both sides drew the same numbers.

    Equal generator states afterwards mean that they did. Where they differ, values that do not depend on the
    draws can still be judged: those that stay the same under another seed.
    """
    if same_states(eager.rng, compiled.rng):
        return verdict.with_notes("random, with the same draws on both sides")
    torch.manual_seed(torch.initial_seed() + 1)
    reseeded = compare_runs(eager, subject.eager(without_compilers()), None, rule=Rule(strict=True))
    random_paths = {leaf.path for leaf in reseeded.differing}
    comparison = verdict.comparison
    assert comparison is not None
    if any(leaf.path not in random_paths for leaf in comparison.differing):
        return verdict.with_notes("random, but values that do not depend on the draws differ as well")
    return replace(
        verdict,
        kind=Kind.NOT_COMPARABLE,
        summary="random: eager and compiled did not draw the same numbers",
    )


@contextmanager
def _starting_from(state: RngState, *contexts: AbstractContextManager[Any]) -> Iterator[None]:
    """The generators in the given state at the start of the body, and further contexts around it."""
    restore_rng_state(state)
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def eager_randomness() -> Iterator[None]:
    """Inductor draws from eager's generators. Checked on torch 2.11 to 2.15 (`fallback_random`)."""
    from torchrepro.torch_api.inductor import config

    with config.patch(fallback_random=True):
        yield
