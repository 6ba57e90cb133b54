"""Judge one compilation on many sets of inputs: repeated layers, or other values in a minimal repro."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchrepro.execute.judge_repro import Prepared, judge_repro, repro_common, subject_of_prepared
from torchrepro.judge.execute import named_state
from torchrepro.judge.models import Phase, Phases, Subject, judge
from torchrepro.judge.rule import Rule
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import applied_settings


def verdicts_of_rounds(
    repro: Repro, *, own: int = 0, seconds: float | None = None, phase: Phase
) -> list[Verdict]:
    """Return a verdict for `repro.inputs` and for each later set in `repro.earlier`, in order.

    The first `own` entries of `repro.earlier` are earlier calls of the repro itself. Each set is judged by
    itself: none sees what another one has written or raised. With a limit of `seconds`, no set is begun after
    it, nor after one that raises: what is raised in the first round is the verdict on all of them.
    """
    started = time.monotonic()
    single = replace(repro, earlier=repro.earlier[:own])
    verdicts: list[Verdict] = []
    for verdict in _verdicts(single, (repro.inputs, *repro.earlier[own:]), Phases(phase)):
        verdicts.append(verdict)
        if seconds is not None and (verdict.raised is not None or time.monotonic() - started > seconds):
            break
    return verdicts


def _verdicts(repro: Repro, sets: Sequence[tuple[Any, ...]], phase: Phases) -> Iterator[Verdict]:
    if repro.place is Place.BEFORE_CAPTURE or repro.earlier:
        # Capture looks at values, and earlier calls leave traces: these are compiled again for each set.
        yield from (judge_repro(replace(repro, inputs=inputs), phase=phase) for inputs in sets)
        return
    compiled = _CompiledOnce(repro_common(repro), phase)
    rule = Rule(strict=repro.strict, tol=repro.tolerance)
    rng = repro.ambient.rng or None
    with applied_settings(repro.ambient):
        for number, inputs in enumerate(sets):
            # What agrees with itself on the first inputs is not run twice on all others.
            yield judge(compiled.subject(inputs), rule=rule, rng=rng, phase=phase, steady=number > 0)


class _CompiledOnce:
    """A repro whose compiled function is kept for the next set; a compilation that raises is retried."""

    def __init__(self, prepared: Prepared, phase: Phases) -> None:
        self._prepared = prepared
        self._phase = phase
        self._compiled: tuple[torch.fx.GraphModule, Callable[..., Any]] | None = None
        self._state: dict[str, torch.Tensor] = {}

    def subject(self, inputs: tuple[Any, ...]) -> Subject:
        prepared = Prepared(replace(self._prepared.repro, inputs=inputs))
        return subject_of_prepared(prepared, self._phase, self._function)

    def _function(self) -> tuple[torch.fx.GraphModule, Callable[..., Any]]:
        """The compiled function, on buffers as they were before any call of it."""
        if self._compiled is None:
            self._compiled = self._prepared.compile()
            state = named_state(self._compiled[0])
            self._state = {name: tensor.detach().clone() for name, tensor in state.items()}
        with torch.no_grad():
            for name, tensor in named_state(self._compiled[0]).items():
                tensor.copy_(self._state[name])
        return self._compiled
