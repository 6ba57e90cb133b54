"""Judge a compiled model against eager: is it as close to the truth as eager is?

Eager runs first, twice from the same random state: a result that differs from itself by more than rounding
cannot be compared. Then the same computation runs in float64, which is the truth both are measured by. The
compiled one runs last, because it may crash, hang or exhaust the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchrepro.judge.compare import same
from torchrepro.judge.execute import (
    Run,
    describe,
    is_out_of_memory,
    observe_call,
    run_fwd_maybe_bwd,
    verdict_of,
)
from torchrepro.judge.explain_rounding import explain_differences
from torchrepro.judge.op_forms import Draws, RecordRandom
from torchrepro.judge.reference import true_run, without_compilers
from torchrepro.judge.rule import Rule
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
"""Called with the name of what is about to run, so that a crash or a hang can be attributed to it."""


class Phases:
    """A `Phase` that forwards each name and keeps the last."""

    def __init__(self, report: Phase = lambda name: None) -> None:
        self._report = report
        self.last = ""

    def __call__(self, name: str) -> None:
        self.last = name
        self._report(name)


@dataclass
class Judged:
    """The runs and the exception that a verdict is based on."""

    runs: dict[str, Run] = field(default_factory=dict)
    """The first runs of `eager`, `truth` and `compiled`, as far as there were any."""
    raised: Exception | None = None
    """What the compiled side raised: the verdict keeps only its text."""


@dataclass(frozen=True)
class Subject:
    """A computation that can be run any number of times, each run independent of the others.

    `eager` and `compiled` take a context to enter around the call itself, but not around building or copying
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
    args, named = tuple(example_inputs), dict(kwargs or {})

    def observe(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        return observe_call(model, args, kwargs, only_fwd=only_fwd)

    subject = Subject(
        eager=lambda around: run_fwd_maybe_bwd(gm, args, only_fwd, kwargs=named, around=around),
        compiled=lambda around: run_fwd_maybe_bwd(opt_gm, args, only_fwd, kwargs=named, around=around),
        truth=lambda draws: true_run(observe, gm, args, named, draws),
    )
    verdict = judge(subject, rule=rule, require_fp64=require_fp64)
    if verdict.comparison is not None and bool(verdict.comparison) == (verdict.kind is Kind.PASS):
        return replace(verdict.comparison, notes=verdict.comparison.notes + verdict.notes)
    leaf = LeafComparison("", Difference.RAISED, detail=str(verdict), blamed=verdict.blamed)
    return Comparison((leaf,), notes=verdict.notes)


def judge(
    subject: Subject,
    *,
    rule: Rule | None = None,
    require_fp64: bool = False,
    rng: Mapping[str, torch.Tensor] | None = None,
    phase: Phase = lambda name: None,
    steady: bool = False,
    ask_rounding: bool = True,
    judged: Judged | None = None,
) -> Verdict:
    """Judge a subject and restore the caller's random generators.

    `steady`: eager is known to agree with itself, and is run once. Without `ask_rounding` a difference stays
    one that rounding might explain. `judged` receives what was judged.
    """
    start = capture_rng_state().starting_from(rng or {})
    phase = phase if isinstance(phase, Phases) else Phases(phase)
    rule, judged = rule or Rule(), judged or Judged()
    with same_randomness(start):
        phase("eager")
        recorder = RecordRandom()
        eager = _attempt(lambda: subject.eager(_starting_from(start, without_compilers(), recorder)))
        if isinstance(eager, Exception):
            # The recorder is a dispatch mode, under which torch fails on tensors such as a ZeroTensor
            # (pytorch#197067).
            recorder = RecordRandom()
            eager = _attempt(lambda: subject.eager(_starting_from(start, without_compilers())))
        if isinstance(eager, Exception):
            return _judge_without_eager(subject, start, eager, phase, judged)
        judged.runs["eager"] = eager
        repeated = _Repeated() if steady else _repeat(subject, start, eager)
        truth, notes = _truth(subject, recorder.draws, require_fp64, start, phase)
        if truth is not None:
            judged.runs["truth"] = truth

        phase("compile")
        from_generators = recorder.is_random and not recorder.is_seeded
        randomness = eager_randomness() if from_generators else nullcontext()
        compiled = _attempt(lambda: subject.compiled(_starting_from(start, randomness)))
        if isinstance(compiled, Exception):
            judged.raised = compiled
            # A compilation that began inside the call has finished by now; then the frames give the phase.
            compiling = True if phase.last == "compile" else None
            return verdict_of(compiled, compiling=compiling).with_notes(*notes)
        judged.runs["compiled"] = compiled
        phase("compare")
        if repeated.differs:
            if not _is_rounding(repeated, subject, rule, start, eager, truth):
                summary = f"non-deterministic: {repeated.differs}"
                return Verdict(Kind.NOT_COMPARABLE, summary=summary, notes=notes)
            notes = (f"not bitwise deterministic: {repeated.differs}", *notes)
        # Where there is no truth, eager's noise has to be guessed, and mixed precision gives float32 results
        # that have only a half type's digits.
        rule = replace(rule, blind_dtype=recorder.coarsest_dtype)
        verdict = verdict_of_comparison(compare_runs(eager, compiled, truth, rule=rule)).with_notes(*notes)
        if verdict.fails and recorder.is_random:
            verdict = _if_draws_agree(verdict, subject, eager, compiled)
        if not verdict.fails or verdict.comparison is None or not ask_rounding:
            return verdict
        phase("rounding")
        explained = explain_differences(
            verdict.comparison,
            eager,
            rule,
            lambda noise: subject.eager(_starting_from(start, without_compilers(), noise)),
            lambda run, rule: compare_runs(run, compiled, truth, rule=rule),
        )
        if explained.comparison is verdict.comparison:
            return verdict.with_notes(*explained.notes)
        return verdict_of_comparison(explained.comparison).with_notes(*verdict.notes, *explained.notes)


def _attempt(run: Callable[[], Run]) -> Run | Exception:
    """Return the run, or what it raised. Errors about the user's input (`TorchReproError`) propagate."""
    try:
        return run()
    except TorchReproError:
        raise
    except Exception as exc:
        return exc


def _judge_without_eager(
    subject: Subject, start: RngState, raised: Exception, phase: Phase, judged: Judged
) -> Verdict:
    """Return the verdict where eager raises: a missing error if the compiled side does not, else invalid."""
    phase("compile")
    found = not is_out_of_memory(raised) and _attempt(lambda: subject.compiled(_starting_from(start)))
    judged.raised = found if isinstance(found, Exception) else None
    return verdict_without_eager(raised, missing=isinstance(found, Run))


def verdict_without_eager(raised: Exception, *, missing: bool) -> Verdict:
    """Return the verdict where eager raises; `missing`: the compiled function does not."""
    described = describe(raised)
    if not missing:
        return Verdict(Kind.INVALID, summary=f"eager itself fails: {described}", raised=described)
    summary = f"eager raises {described}; the compiled function does not"
    return Verdict(Kind.MISSING_ERROR, summary=summary, raised=described)


@dataclass(frozen=True, eq=False)
class _Repeated:
    """How eager's second run from one random state differs from the first, and the run where it does."""

    differs: str = ""
    run: Run | None = None


def _repeat(subject: Subject, start: RngState, eager: Run) -> _Repeated:
    again = _attempt(lambda: subject.eager(_starting_from(start, without_compilers())))
    if isinstance(again, Exception):
        return _Repeated(f"eager raises the second time: {describe(again)}")
    found = compare_runs(eager, again, None, rule=Rule(strict=True))
    return _Repeated() if found else _Repeated(f"eager differs from itself: {found}", again)


def _is_rounding(
    repeated: _Repeated, subject: Subject, rule: Rule, start: RngState, eager: Run, truth: Run | None
) -> bool:
    """Return whether eager's two runs differ by rounding alone, such as by the order of atomic additions.

    They do if the rule tolerates the difference, or if each is as close to the truth as the other and float64
    agrees with itself. The second float64 run replays what a third eager run draws: draws that cannot be
    reproduced differ there as well.
    """
    again = repeated.run
    if again is None or compare_runs(eager, again, None, rule=rule):
        return again is not None
    if truth is None or not all(
        compare_runs(one, other, truth, rule=rule) for one, other in ((eager, again), (again, eager))
    ):
        return False
    recorder = RecordRandom()
    third = _attempt(lambda: subject.eager(_starting_from(start, without_compilers(), recorder)))
    repeat = None if isinstance(third, Exception) else _truth(subject, recorder.draws, False, start)[0]
    return repeat is not None and bool(compare_runs(truth, repeat, None, rule=Rule()))


def _truth(
    subject: Subject,
    draws: Draws,
    require_fp64: bool,
    start: RngState,
    phase: Phase = lambda name: None,
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
        # What a call did not change is equal bit for bit, and needs no truth.
        alone = name not in ("outputs", "gradients") and same(
            *sides, rule=replace(rule, strict=True), path=path
        )
        found = alone or same(*sides, part(truth, name), rule=rule, path=path)
        leaves.extend(found.leaves)
        notes.extend(found.notes)
    return Comparison(tuple(leaves), tuple(dict.fromkeys(notes)))


def verdict_of_comparison(comparison: Comparison) -> Verdict:
    """Return pass, mismatch or non-finite; the summary of a pass says if eager is wrong."""
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
    """Restore the given generator state before the body, and enter further contexts around it."""
    restore_rng_state(state)
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def eager_randomness() -> AbstractContextManager[Any]:
    """Make Inductor draw from eager's generators. Checked on torch 2.11 to 2.15 (`fallback_random`)."""
    from torchrepro.torch_api.inductor import config

    patch: AbstractContextManager[Any] = config.patch(fallback_random=True)
    return patch
