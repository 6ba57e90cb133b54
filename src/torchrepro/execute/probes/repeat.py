"""The same inputs, the same bits: one artefact is called again and again, then with other bytes in memory.

Atomic additions in parallel loops may end in any order. Torch documents that, and
`torch.use_deterministic_algorithms` replaces them: what that setting makes equal, and what is no more than
rounding, is no failure.

A kernel that reads memory which nothing has written often finds the right values there, because a former
result was in it. So the C library fills what it hands out (glibc; elsewhere this is left out).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext, Trial, giving, kept
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Subject
from torchrepro.judge.rule import Rule
from torchrepro.nouns.probe import FILL, FILLED, FILLS
from torchrepro.nouns.verdict import Verdict

_AGAIN = "again"
_RUNS = 1 + len(FILLS)


def probe_repeat(context: ProbeContext) -> Finding:
    artefact, judged = context.artefact(), Judged()
    baseline = context.judge_baseline(artefact, judged)
    if not baseline.testable or baseline.fails:
        return Finding(baseline, context.probe)
    asked = context.probe.tries or (_AGAIN, FILLED)
    if _AGAIN in asked:
        repeated = _differing(context, artefact, judged)
        if repeated is not None:
            return _answer(context, baseline, repeated, _AGAIN)
    if FILLED in asked and _mallopt() is not None:
        eager = context.artefact(compiles=False)
        if _differing(context, eager, judged, side="eager", around=_filled_memory) is not None:
            words = "in eager too, the result depends on memory that nothing has written"
            return Finding(context.passed(words, baseline.notes), context.probe)
        repeated = _differing(context, artefact, judged, around=_filled_memory)
        if repeated is not None:
            same = [repeated[0]] * 2  # with the same bytes, atomic additions would not differ each time
            differ = all(_differing(context, artefact, judged, each, around=_filled_memory) for each in same)
            return _answer(context, baseline, repeated, FILLED if differ else _AGAIN)
    return Finding(context.passed(f"the same bits in {_RUNS} runs", baseline.notes), context.probe)


def _answer(
    context: ProbeContext, baseline: Verdict, repeated: tuple[int, Verdict, bool], name: str
) -> Finding:
    """Return a run that differs as a finding; as a pass where it is rounding that may differ."""
    number, verdict, rounding = repeated
    passed = ""
    rounding &= name != FILLED
    if rounding and any("not bitwise deterministic" in note for note in baseline.notes):
        passed = "as eager, it differs by rounding"
    elif rounding and _is_documented(context):
        passed = f"run {number} differs by rounding; torch.use_deterministic_algorithms makes it equal"
    if passed:
        return Finding(context.passed(passed, baseline.notes), context.probe)
    words = f"run {number} differs from the first" + (", with other bytes in new memory" * (name == FILLED))
    return context.found(verdict, Trial(name, lambda: None, words))


def _differing(
    context: ProbeContext,
    artefact: Artefact,
    judged: Judged,
    only: int | None = None,
    *,
    side: str = "compiled",
    around: Callable[[int], AbstractContextManager[Any]] = nullcontext,
) -> tuple[int, Verdict, bool] | None:
    """Return the first run whose bits differ from the first one's, and whether the rule allows that.

    `only`: the number of the one run to look at.
    """
    first, truth = kept(judged.runs[side]), judged.runs.get("truth")
    repeated = artefact.subject(context.repro.inputs).compiled
    for number in range(2, _RUNS + 1) if only is None else [only]:

        def again(entered: AbstractContextManager[Any], number: int = number) -> Run:
            with around(number):
                return repeated(entered)

        strictly = Subject(giving(first), again, lambda draws: (truth or first, ()))
        seen = Judged()
        verdict = context.judge(strictly, rule=Rule(strict=True), judged=seen)
        if verdict.fails:
            return number, verdict, _allowed(context, strictly, seen)
    return None


def _allowed(context: ProbeContext, subject: Subject, seen: Judged) -> bool:
    """Return whether the rule lets the run that was seen differ from the first."""
    if context.rule.strict or "compiled" not in seen.runs:
        return False
    run = kept(seen.runs["compiled"])
    return not context.judge(replace(subject, compiled=giving(run))).fails


def _is_documented(context: ProbeContext) -> bool:
    """Return whether the runs agree where torch uses deterministic algorithms."""
    mode = torch.get_deterministic_debug_mode()
    if mode:
        return False  # it has been told already
    torch.set_deterministic_debug_mode("warn")
    try:
        artefact, judged = context.artefact(), Judged()
        baseline = context.judge_baseline(artefact, judged)
        return not baseline.fails and "compiled" in judged.runs and not _differing(context, artefact, judged)
    finally:
        torch.set_deterministic_debug_mode(mode)


@contextmanager
def _filled_memory(number: int) -> Iterator[None]:
    """Let the C library fill memory in the body, when it is handed out and when it is released."""
    mallopt = _mallopt()
    assert mallopt is not None, "the caller asks"
    mallopt(FILL, FILLS[number - 2])
    try:
        yield
    finally:
        mallopt(FILL, 0)


def _mallopt() -> Callable[[int, int], int] | None:
    """Return the function of glibc that sets options of its allocator; None where there is none."""
    return getattr(ctypes.CDLL(None), "mallopt", None)
