"""Compiled again, and with other choices that must not matter: each result judged against eager.

The choices are inductor's own settings of how code is generated: what is fused, how wide its vectors are,
what memory is used again, which implementation autotuning picks. Other compilers compile again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torchrepro.execute.probes.context import Finding, ProbeContext, Trial
from torchrepro.judge.execute import Run
from torchrepro.nouns.verdict import Verdict
from torchrepro.torch_api.configs import patched_config
from torchrepro.torch_api.inductor import CHOICES, fresh_cache

_AGAIN = "again"


def probe_recompile(context: ProbeContext) -> Finding:
    baseline = context.judge_baseline(context.artefact())
    if context.repro.compiler.name != "inductor":
        return context.try_each(baseline, [_trial(context, _AGAIN, {}, "compiled again")])
    trials = [
        _trial(context, name, settings, ", ".join(f"{key}={value}" for key, value in settings.items()))
        for name, settings in CHOICES.items()
    ]
    trials.insert(-1, _again_in_empty_cache(context))
    return context.try_each(baseline, trials)


def _again_in_empty_cache(context: ProbeContext) -> Trial:
    # A precompiled header for the empty cache takes longer than the kernels of most graphs.
    settings = {"cpp_cache_precompile_headers": False}
    return _trial(context, _AGAIN, settings, "compiled again, in an empty cache", fresh_cache)


def _trial(
    context: ProbeContext,
    name: str,
    settings: dict[str, Any],
    words: str,
    cache: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Trial:
    def judge() -> Verdict:
        subject = context.artefact().subject(context.repro.inputs)

        def compiled(around: AbstractContextManager[Any]) -> Run:
            with patched_config("inductor", settings), cache():
                return subject.compiled(around)

        return context.judge(replace(subject, compiled=compiled))

    return Trial(name, judge, words)
