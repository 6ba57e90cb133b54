"""Find the culprit inside a stage (pass, rewrite, decomposition, lowering or option).

Whole groups are turned off first, and a group is narrowed down only if that makes the failure go away. The
most informative groups come first. Options of code generation come before lowerings: a wrong lowering is
wrong in scalar and unfused code, too, while calling the operator in place of a lowering also ends its fusion
and vectorisation. And lowerings come before passes, without which a wrong lowering may not be reached.

With the culprit alone turned off the repro passes. For an option, a pass or a rewrite, everything before it
is then as in the failing run. A decomposition or a lowering that is off leaves a call of the operator, which
has other strides and ends a fusion. That alone may hide a failure, so `proved` asks for a wrong operator.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from torchrepro.cut.hints import evidence_in
from torchrepro.engine.baseline import Failure
from torchrepro.engine.line_file import read_lines
from torchrepro.engine.subsets import narrow
from torchrepro.execute.backends import LADDER, with_backend
from torchrepro.locate.context import Inquiry
from torchrepro.locate.switches import (
    AOT,
    CAPTURE,
    CODE_GENERATION,
    DECOMPOSITIONS,
    INDUCTOR,
    LOWERINGS,
    PARTITION,
    PASSES,
    PATTERNS,
    Off,
    Switch,
    all_off,
    by_name,
    switches_of,
)
from torchrepro.nouns.repro import AOT_INDUCTOR, Repro
from torchrepro.nouns.results import GuiltyOp, Part, Way
from torchrepro.nouns.verdict import Stage, Verdict
from torchrepro.torch_api.ops import plain_op_name

_JOB = "torchrepro.locate.switches:judge_without"
_TARGET = re.compile(r"\btarget:\s*(aten\.\w+\.\w+|prims\.\w+\.\w+)")
_TELLING = 10.0
"""Weight of evidence beyond which an operator is tried before all others."""
_HALVINGS = 2
_SETTINGS = {
    Stage.CAPTURE: ("dynamo", CAPTURE),
    Stage.AOT: ("functorch", AOT),
    Stage.DECOMPOSITION: ("functorch", PARTITION),
    Stage.BACKEND: (INDUCTOR, CODE_GENERATION),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The culprit, and all that has to be turned off for the failure to go away."""

    part: Part
    off: Off

    @classmethod
    def of(cls, culprits: Sequence[Switch]) -> Found | None:
        if not culprits:
            return None
        names, meanings = (
            " and ".join(getattr(one, said) for one in culprits) for said in ("name", "meaning")
        )
        part = Part(culprits[0].kind, names, f"the failure goes away without {meanings}")
        return cls(part, all_off(culprits))

    def hiding(self, reason: str) -> Found:
        """Return the same as a part that merely hides the failure when it is turned off."""
        detail = f"turning it off hides the failure: {reason}"
        return replace(self, part=replace(self.part, detail=detail, verified=False))

    @property
    def operators(self) -> list[tuple[str, str]]:
        """Kind and name of what replaces the implementation of an operator."""
        parts = self.off.parts
        return [(kind, name) for kind in (DECOMPOSITIONS, LOWERINGS) for name in parts.get(kind, ())]


def find_part(inquiry: Inquiry, stage: Stage, suspects: Sequence[str] = ()) -> Found | None:
    """Return the culprit inside a stage; None if none was found. `suspects`: operators to try first."""
    inquiry.on_step(f"the culprit inside the stage {stage.value}")
    repro = inquiry.repro
    if stage is Stage.BACKEND:
        if repro.compiler.name not in (INDUCTOR, AOT_INDUCTOR):
            return None  # no switches are known for other compilers
        return _in_inductor(Trials(inquiry, repro), suspects)
    backend = next((step.backend for step in LADDER if step.stage is stage), None)
    if backend is None:
        return None
    cheap = Trials(inquiry, with_backend(repro, backend))
    found = cheap.narrowed(switches_of(*_SETTINGS[stage], cheap.repro))
    if found is None and stage is Stage.DECOMPOSITION:
        found = cheap.narrowed_as_met(DECOMPOSITIONS)
    compiler = repro.compiler
    if found is None or cheap.repro.compiler == compiler or Trials(inquiry, repro).goes_away(found.off):
        return found
    return found.hiding(f"seen to matter under {backend}, not under {compiler.name}")


def proved(inquiry: Inquiry, found: Found, op: GuiltyOp | None, single: Repro | None) -> Found:
    """Return the culprit as verified if it was shown wrong itself, else as one that hides the failure.

    `op` is the first wrong op, `single` that op alone on its recorded operands.
    """
    if not found.part.verified or not found.operators:
        return found
    evidence = evidence_in(inquiry.verdict)
    plain = [plain_op_name(name) for _, name in found.operators]
    if all(evidence.get(name, 0.0) > _TELLING for name in plain):
        return found
    if op is None or op.way not in (Way.ERROR, Way.OUTPUTS, Way.WINDOW):
        return found.hiding("no op was shown to be wrong by itself")
    if plain == [plain_op_name(op.op)]:
        return found
    trials = None if single is None else Trials(inquiry, single)
    if trials is not None and op.way is Way.WINDOW and trials.goes_away(found.off):
        return found
    if trials is not None and op.way is Way.OUTPUTS:
        met = {switch.name for switch in trials.switches(DECOMPOSITIONS, LOWERINGS)}
        if met.issuperset(name for _, name in found.operators):
            return found
    return found.hiding(f"the op that is wrong, {op.op}, does not need it to be wrong")


def _in_inductor(trials: Trials, suspects: Sequence[str]) -> Found | None:
    verdict = trials.inquiry.verdict
    # Operators that inductor says it was lowering.
    message = verdict.raised.message if verdict.raised is not None else ""
    guess = by_name(LOWERINGS, _TARGET.findall("\n".join([message, *verdict.notes]))[:1])
    if guess and trials.goes_away(guess[0].off):
        return Found.of(guess)
    found = trials.narrowed(switches_of(*_SETTINGS[Stage.BACKEND], trials.repro))
    if found is None:
        first = _suspected(trials, suspects)
        if first is not None and trials.goes_away(first.off):
            return Found.of([first])
        return (
            trials.narrowed(trials.switches(LOWERINGS))
            or trials.narrowed_as_met(PATTERNS, PASSES)
            or trials.narrowed_as_met(DECOMPOSITIONS)
        )
    # Name the operator too, if the suspected one is generated wrong with the option.
    lowering = _suspected(trials, suspects) if suspects else None
    if lowering is None or not trials.goes_away(lowering.off):
        return found
    detail = f"{found.part.detail}, or with {lowering.name} called as it is"
    return replace(found, part=replace(found.part, detail=detail))


def _suspected(trials: Trials, suspects: Sequence[str]) -> Switch | None:
    """Return the lowering that the evidence or another step points to, or None."""
    evidence = evidence_in(trials.inquiry.verdict)
    plain = {plain_op_name(name) for name in suspects}

    def weight(switch: Switch) -> float:
        name = plain_op_name(switch.name)
        return 100.0 if name in plain else evidence.get(name, 0.0)

    best = max(trials.switches(LOWERINGS), key=weight, default=None)
    return best if best is not None and weight(best) > _TELLING else None


@dataclass(eq=False)
class Trials:
    """Queries about one repro with parts of the compiler turned off."""

    inquiry: Inquiry
    repro: Repro
    _met: dict[str, dict[str, None]] = field(default_factory=dict)

    def switches(self, *kinds: str) -> list[Switch]:
        """Return a switch for each part (pass, rewrite, ...) that has occurred in the runs so far."""
        if not self._met:
            self.verdict(Off())
        return [switch for kind in kinds for switch in by_name(kind, self._met.get(kind, ()))]

    def goes_away(self, off: Off) -> bool:
        """Return whether the repro passes; another failure or an untestable run does not count."""
        return self.inquiry.is_gone(self.verdict(off))

    def narrowed(self, group: Sequence[Switch], *, halvings: int = _HALVINGS) -> Found | None:
        """Return the culprit in a group; None if the failure stays with all of it turned off.

        With so much turned off another failure may appear, which proves nothing: then try each half.
        """
        if not group:
            return None
        verdict = self.verdict(all_off(group))
        if self.inquiry.is_gone(verdict):
            chosen = narrow(group, lambda some: self.goes_away(all_off(some)), weight=attrgetter("weight"))
            return Found.of(chosen)
        usual = Failure.of(self.inquiry.verdict_on(self.repro))
        if usual.shown_by(verdict) or len(group) == 1 or not halvings:
            return None
        halves = group[: len(group) // 2], group[len(group) // 2 :]
        return next(filter(None, (self.narrowed(half, halvings=halvings - 1) for half in halves)), None)

    def narrowed_as_met(self, *kinds: str) -> Found | None:
        """Return the culprit in a group that grows: with a pass off, a later one may do the same rewrite."""
        found, asked = None, 0
        while found is None and len(group := self.switches(*kinds)) > asked:
            found, asked = self.narrowed(group), len(group)
        return found

    def verdict(self, off: Off) -> Verdict:
        """Return the verdict with these parts turned off, and record the parts that occur."""
        with tempfile.TemporaryDirectory(prefix="torchrepro-met-") as directory:
            path = Path(directory) / "met.jsonl"
            verdict = self.inquiry.verdict_on(
                off.applied_to(self.repro), job=_JOB, extra={"met": str(path)}, off=dict(off.parts)
            )
            for kind, name in read_lines(path, list):  # a process that dies may leave half a line
                self._met.setdefault(kind, {})[name] = None
        return verdict
