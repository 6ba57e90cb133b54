"""One compilation, judged on many sets of inputs: repeated layers are the same code on other values."""

from __future__ import annotations

import functools
import time
from dataclasses import replace

from torchrepro.execute.judge_repro import Prepared, repro_common, subject_of_prepared
from torchrepro.judge.models import Phase, judge
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
    compiled = functools.cache(first.compile)
    verdicts: list[Verdict] = []
    with applied_settings(repro.ambient):
        for inputs in (repro.inputs, *repro.earlier):
            subject = subject_of_prepared(Prepared(replace(single, inputs=inputs)), phase, compiled)
            rule = Rule(strict=repro.strict, tol=repro.tolerance)
            verdicts.append(
                judge(subject, rule=rule, rng=repro.ambient.rng or None, phase=phase, steady=True)
            )
            if verdicts[-1].raised is not None or time.monotonic() - started > seconds:
                break
    return verdicts
