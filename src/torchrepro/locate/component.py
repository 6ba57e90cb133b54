"""Find the culprit inside a stage (pass, rewrite, decomposition, lowering or option) and a workaround.

Whole groups are turned off first, and a group is narrowed down only if that makes the failure go away. The
most informative groups come first. Options of code generation come before lowerings: a wrong lowering is
wrong in scalar and unfused code, too, while calling the operator in place of a lowering also ends its fusion
and vectorisation. And lowerings come before passes, without which a wrong lowering may not be reached. The
culprit is verified: with it alone turned off the repro passes.

A workaround is the smallest change to the user's code that is verified to make the failure go away. Options
of `torch.compile` first, from the one that turns off just the culprit to calling every operator without
generated code; then a setting of torch; then a simpler backend, without the failing stages.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.cut.hints import evidence_in
from torchrepro.engine.baseline import Failure
from torchrepro.engine.subsets import narrow
from torchrepro.execute.backends import LADDER, with_backend
from torchrepro.locate.context import Inquiry
from torchrepro.locate.stages import Ladder, captures
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
    settings_of,
    switches_of,
)
from torchrepro.nouns.repro import AOT_INDUCTOR, Place, Repro
from torchrepro.nouns.results import Part, Workaround
from torchrepro.nouns.verdict import Kind, Stage, Verdict
from torchrepro.torch_api.names import COMPILE_AHEAD
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
    seen = f"seen to matter under {backend}, not under {compiler.name}"
    inquiry.notes.append(f"{found.part.name}: {seen}")
    return found


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
            path.touch()
            verdict = self.inquiry.verdict_on(
                off.applied_to(self.repro), job=_JOB, extra={"met": str(path)}, off=dict(off.parts)
            )
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # a process that dies may leave half a line
                    kind, name = msgspec.json.decode(line)
                    self._met.setdefault(kind, {})[name] = None
        return verdict


# The passes that have their own option; the others are disabled by name (`disabled_passes`).
_OPTION_OF_PASS: Mapping[str, Mapping[str, Any]] = {
    "constant_fold_uniform_value": {"joint_graph_constant_folding": False},
    "reorder_for_locality": {"reorder_for_locality": False},
    "partitioned_scatter_optimization": {"partitioned_scatter_enabled": False},
}
_ALL_PASSES: Mapping[str, Any] = {
    "use_pre_grad_passes": False,
    "use_joint_graph_passes": False,
    "use_post_grad_passes": False,
}
_CALL_EVERY_OPERATOR: Mapping[str, Any] = {"fallback_by_default": True}


def find_workaround(inquiry: Inquiry, ladder: Ladder, found: Found | None) -> Workaround | None:
    """Return the first workaround with which the repro passes; None if there is none."""
    if ladder.stage is Stage.NONE:
        return None
    inquiry.on_step("a workaround")
    if ladder.stage is Stage.BACKEND and inquiry.repro.compiler.name in (INDUCTOR, AOT_INDUCTOR):
        known = settings_of(INDUCTOR, inquiry.repro).keys()
        for options in _options_for(found):
            if options.keys() <= known and inquiry.passes(_with_options(inquiry.repro, options)):
                return _by_fewest(inquiry, options)
    for code, candidate in _lines_for(inquiry.repro, ladder, found):
        if candidate is None or inquiry.passes(candidate):
            return Workaround(code=code, verified=True)
    return None


def _options_for(found: Found | None) -> Iterator[Mapping[str, Any]]:
    """Yield options to try, the one with the least cost for the user first."""
    if found is not None:
        yield from [found.off.settings[INDUCTOR]] if INDUCTOR in found.off.settings else []
        passes, patterns = (found.off.parts.get(kind, ()) for kind in (PASSES, PATTERNS))
        if passes:
            # Some passes have their own option; the others are disabled by name.
            named = ",".join(sorted(set(passes) - set(_OPTION_OF_PASS)))
            options: dict[str, Any] = {"disabled_passes": named} if named else {}
            for name in sorted(set(passes) & set(_OPTION_OF_PASS)):
                options |= _OPTION_OF_PASS[name]
            yield options
        if patterns:
            yield {"pattern_matcher": False}
        if passes or patterns:
            yield _ALL_PASSES
    yield _CALL_EVERY_OPERATOR
    yield {**_CALL_EVERY_OPERATOR, **_ALL_PASSES}


def _with_options(repro: Repro, options: Mapping[str, Any], names: Iterable[str] | None = None) -> Repro:
    chosen = options if names is None else {name: options[name] for name in names}
    return Off({INDUCTOR: chosen}).applied_to(repro)


def _by_fewest(inquiry: Inquiry, options: Mapping[str, Any]) -> Workaround:
    """Return the workaround with only those options that are needed."""
    repro, needed = inquiry.repro, list(options)
    if len(needed) > 1:
        needed = narrow(needed, lambda some: inquiry.passes(_with_options(repro, options, some))) or needed
    whole = _with_options(repro, options, needed)
    return Workaround(options=dict(whole.compiler.options), code=code_for(whole), verified=True)


def _lines_for(repro: Repro, ladder: Ladder, found: Found | None) -> Iterator[tuple[str, Repro | None]]:
    """Yield workarounds that are not options, each with the repro to try; None: it is known to pass."""
    configs = {} if found is None else {**found.off.settings}
    configs.pop(INDUCTOR, None)
    if configs:
        lines = [
            f"torch._{module}.config.{name} = {value!r}"
            for module, values in sorted(configs.items())
            for name, value in values.items()
        ]
        yield "; ".join(lines), Off(configs).applied_to(repro)
    passing = [rung.backend for rung in ladder.rungs if rung.kind is Kind.PASS]
    if passing:
        yield code_for(with_backend(repro, passing[-1])), None
    if captures(repro):
        # As `torch.compiler.disable` does for one function.
        yield "@torch.compiler.disable", Off({"dynamo": {"disable": True}}).applied_to(repro)
    else:
        # The backend that runs a graph as it was captured. It is not on the ladder: it has no stage.
        plain = with_backend(repro, "aot_eager" if repro.place is Place.AFTER_AOT else "eager")
        yield code_for(plain), plain


def code_for(repro: Repro) -> str:
    """Return the call that selects the compiler of this repro in a user's code."""
    compiler = repro.compiler
    if compiler.name == AOT_INDUCTOR:
        configs = f", inductor_configs={dict(compiler.options)!r}" if compiler.options else ""
        return f"{COMPILE_AHEAD}(program{configs})"
    words = ["program.module()" if repro.place is Place.EXPORT else "model"]
    if compiler.name != "inductor":
        backend = compiler.name.rpartition(":")[2] if ":" in compiler.name else repr(compiler.name)
        words.append(f"backend={backend}")
    words += [f"mode={compiler.mode!r}"] if compiler.mode else []
    words += [f"dynamic={compiler.dynamic}"] if compiler.dynamic is not None else []
    words += ["fullgraph=True"] if compiler.fullgraph else []
    words += [f"options={dict(compiler.options)!r}"] if compiler.options else []
    return f"torch.compile({', '.join(words)})"
