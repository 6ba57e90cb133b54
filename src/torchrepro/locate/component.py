"""The culprit inside a stage: a pass, a rewrite, a decomposition, a lowering or an option of a compiler.

Bold first: whole groups are turned off, and only where that makes the failure go away it is narrowed down.
The groups come in the order in which their answer is worth more. Options of code generation come before
lowerings: a wrong lowering is wrong in scalar and unfused code, too, while calling the operator in place of a
lowering also ends its fusion and vectorisation. And lowerings come before passes, which a wrong lowering may
need to be reached at all. What is named has been seen to matter: with it alone turned off the repro passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchrepro.cut.hints import Evidence
from torchrepro.engine.subsets import narrow
from torchrepro.execute.backends import LADDER, with_backend
from torchrepro.locate import switches
from torchrepro.locate.ablation import DECOMPOSITIONS, LOWERINGS, PASSES, PATTERNS, Off, Trials
from torchrepro.locate.context import Inquiry
from torchrepro.locate.switches import Switch, all_off, by_name
from torchrepro.nouns.repro import AOT_INDUCTOR, Repro
from torchrepro.nouns.results import Part
from torchrepro.nouns.verdict import Stage, Verdict
from torchrepro.torch_api.ops import plain_op_name

_TARGET = re.compile(r"\btarget:\s*(aten\.\w+\.\w+|prims\.\w+\.\w+)")
_TELLING = 10.0
"""Weight of evidence beyond which an operator is asked about before all others."""
_HALVINGS = 2


@dataclass(frozen=True, slots=True)
class Found:
    """The culprit, and all that has to be turned off for the failure to go away."""

    part: Part
    off: Off


def find_part(inquiry: Inquiry, stage: Stage, suspects: Sequence[str] = ()) -> Found | None:
    """Return the culprit inside a stage; None where none was found. `suspects`: operators to try first."""
    inquiry.on_step(f"the culprit inside the stage {stage.value}")
    repro = inquiry.repro
    if stage is Stage.BACKEND:
        if repro.compiler.name not in ("inductor", AOT_INDUCTOR):
            return None  # of another compiler no switch is known
        return _in_inductor(Trials(inquiry, repro), suspects)
    backend = next((step.backend for step in LADDER if step.stage is stage), None)
    if backend is None:
        return None
    cheap = Trials(inquiry, with_backend(repro, backend))
    found = _in_decompositions(cheap) if stage is Stage.DECOMPOSITION else _in_settings(cheap, stage)
    if found is None or cheap.repro.compiler == repro.compiler:
        return found
    return _confirmed(found, Trials(inquiry, repro), backend)


def _in_inductor(trials: Trials, suspects: Sequence[str]) -> Found | None:
    named = _named_by_the_error(trials.inquiry.verdict)
    guess = by_name("lowering", LOWERINGS, named, "the lowering of")
    if guess and trials.goes_away(guess[0].off):
        return _found(guess[:1])
    by_option = _narrowed(trials, switches.of_code_generation(trials.repro))
    if by_option is not None:
        return _with_lowering(by_option, trials, suspects)
    return (
        _narrowed(trials, _lowerings(trials), first=_suspected(trials, suspects))
        or _narrowed_as_met(trials, _passes)
        or _narrowed_as_met(trials, _decompositions)
    )


def _in_decompositions(trials: Trials) -> Found | None:
    by_setting = _narrowed(trials, switches.of_partition(trials.repro))
    return by_setting or _narrowed_as_met(trials, _decompositions)


def _in_settings(trials: Trials, stage: Stage) -> Found | None:
    chosen: Callable[[Repro], list[Switch]] = switches.of_aot if stage is Stage.AOT else switches.of_capture
    return _narrowed(trials, chosen(trials.repro))


def _narrowed(
    trials: Trials, group: Sequence[Switch], *, first: Sequence[Switch] = (), halvings: int = _HALVINGS
) -> Found | None:
    """Return the culprit in a group; None if the failure stays with all of it turned off.

    So much turned off may fail in a way of its own, which says nothing: then the halves are asked.
    """
    for guess in first:
        if trials.goes_away(guess.off):
            return _found([guess])
    if not group:
        return None
    verdict = trials.verdict(all_off(group))
    if trials.inquiry.is_gone(verdict):
        return _found(narrow(group, lambda chosen: trials.goes_away(all_off(chosen)), weight=_weight))
    if trials.fails_as_before(verdict) or len(group) == 1 or not halvings:
        return None
    middle = len(group) // 2
    return _narrowed(trials, group[:middle], halvings=halvings - 1) or _narrowed(
        trials, group[middle:], halvings=halvings - 1
    )


def _narrowed_as_met(trials: Trials, group: Callable[[Trials], list[Switch]]) -> Found | None:
    """Return the culprit in a group that grows: with one pass off, a later one may find the same to do."""
    asked: list[Switch] = []
    while len(now := group(trials)) > len(asked):
        asked = now
        found = _narrowed(trials, asked)
        if found is not None:
            return found
    return None


def _weight(switch: Switch) -> float:
    return switch.weight


def _with_lowering(found: Found, trials: Trials, suspects: Sequence[str]) -> Found:
    """The operator whose generated code is wrong with an option, if it is the one that is suspected."""
    for switch in _suspected(trials, suspects)[:1] if suspects else ():
        if trials.goes_away(switch.off):
            detail = f"{found.part.detail}, or with {switch.name} called as it is"
            return replace(found, part=replace(found.part, detail=detail))
    return found


def _found(culprit: Sequence[Switch]) -> Found | None:
    if not culprit:
        return None
    main = culprit[0]
    meanings = " and ".join(switch.meaning for switch in culprit)
    return Found(
        Part(
            main.kind,
            " and ".join(switch.name for switch in culprit),
            f"the failure goes away without {meanings}",
        ),
        all_off(culprit),
    )


def _confirmed(found: Found, trials: Trials, backend: str) -> Found:
    """The same under the compiler under test, or a note that it was seen under a cheaper backend alone."""
    if not trials.goes_away(found.off):
        trials.inquiry.notes.append(
            f"{found.part.name}: seen to matter under {backend}, not under {trials.repro.compiler.name}"
        )
    return found


def _lowerings(trials: Trials) -> list[Switch]:
    return by_name("lowering", LOWERINGS, trials.met(LOWERINGS), "the lowering of")


def _passes(trials: Trials) -> list[Switch]:
    return [
        *by_name("pass", PATTERNS, trials.met(PATTERNS), "the rewrite"),
        *by_name("pass", PASSES, trials.met(PASSES), "the pass"),
    ]


def _decompositions(trials: Trials) -> list[Switch]:
    return by_name("decomposition", DECOMPOSITIONS, trials.met(DECOMPOSITIONS), "the decomposition of")


def _named_by_the_error(verdict: Verdict) -> list[str]:
    """Operators that inductor says it was lowering."""
    message = verdict.raised.message if verdict.raised is not None else ""
    return list(dict.fromkeys(_TARGET.findall("\n".join([message, *verdict.notes]))))


def _suspected(trials: Trials, suspects: Sequence[str]) -> list[Switch]:
    """The lowering that the evidence or another step points to, if any."""
    evidence = Evidence.of(trials.inquiry.verdict)
    plain = {plain_op_name(name) for name in suspects}
    lowered = _lowerings(trials)

    def weight(switch: Switch) -> float:
        name = plain_op_name(switch.name)
        return 100.0 if name in plain else evidence.against({name: 1})

    best = max(lowered, key=weight, default=None)
    return [best] if best is not None and weight(best) >= _TELLING else []
