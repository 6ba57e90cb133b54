"""One compilation, judged on many sets of inputs: repeated layers are the same code on other values."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torchrepro.execute.judge_repro import Prepared, repro_common, synchronise, truth_of
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Phase, Subject, judge
from torchrepro.judge.rule import Rule
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import applied_settings


def verdicts_of_rounds(repro: Repro, *, seconds: float, phase: Phase) -> list[Verdict]:
    """A verdict for `repro.inputs` and each of `repro.earlier`, in order, until the time is up.

    What is raised while compiling or in the first round is the verdict on all of them.
    """
    started = time.monotonic()
    single = replace(repro, earlier=())
    first = repro_common(single)
    phase("compile")
    compiled: list[Any] = []
    verdicts: list[Verdict] = []
    with applied_settings(repro.ambient):
        for inputs in (repro.inputs, *repro.earlier):
            subject = _subject(Prepared(replace(single, inputs=inputs)), first, compiled, phase)
            rule = Rule(strict=repro.strict, tol=repro.tolerance)
            verdicts.append(
                judge(subject, rule=rule, rng=repro.ambient.rng or None, phase=phase, steady=True)
            )
            if verdicts[-1].raised is not None or time.monotonic() - started > seconds:
                break
    return verdicts


def _subject(prepared: Prepared, first: Prepared, compiled: list[Any], phase: Phase) -> Subject:
    def eager(around: AbstractContextManager[Any]) -> Run:
        graph, inputs = prepared.graph(), prepared.inputs()
        with around:
            return prepared.observe(graph, graph, inputs)

    def again(around: AbstractContextManager[Any]) -> Run:
        with around:
            if not compiled:
                compiled.extend(first.compile())
            phase("run")
            graph, function = compiled
            run = prepared.observe(graph, function, prepared.inputs())
            synchronise()
            return run

    return Subject(eager, again, lambda draws: truth_of(prepared, draws))
