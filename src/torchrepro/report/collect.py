"""Collect the contents of a report from what is recorded in a bundle and around it.

What is missing is left out, and the command that adds it is named.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torchrepro.bundle.manifest import Manifest, devices_of
from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import read_graph_text, read_manifest
from torchrepro.engine.check_bundle import isolation_for
from torchrepro.engine.generated_code import compare_kernels
from torchrepro.engine.processes.child import run_without_reference_if_it_dies
from torchrepro.engine.processes.fresh_process import run_isolated, understood, verdict_of
from torchrepro.engine.version_history import version_history
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.labels import labels_of
from torchrepro.nouns.results import Adoption, Located, Minified
from torchrepro.nouns.sentences import culprit_of, sentence_of, title_of
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.report.bucket import bucket_in
from torchrepro.report.contents import Contents, ErrorMap, Node, Picture
from torchrepro.report.environments import Surrounding, differences, settings_of
from torchrepro.report.evidence import (
    Evidence,
    Measurements,
    script_in_words,
)
from torchrepro.report.graph_picture import picture_of
from torchrepro.report.privacy import shareable
from torchrepro.report.run_files import Surroundings, surroundings_of, verdict_in
from torchrepro.script.test_form import pytest_form


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a run; `verdict` is None if there is none, and the note says why."""

    verdict: Verdict | None = None
    errors: tuple[ErrorMap, ...] = ()
    note: str = ""
    measurements: Measurements = field(default_factory=Measurements)


Measure = Callable[[Path, Manifest], Measured]
"""Runs a bundle for the values that are not recorded (`measured`)."""

Generate = Callable[[Path], Sequence[str]]
"""Returns the code that the compiler generates for a bundle, without running it."""

_MEASURE = "torchrepro.report.error_map:measure"
_NOT_RUN = "the report was made with --no-run"
_HAS_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)
_NEED_VALUES = ("same", "default_tolerances", "precision_casts")
_ANSWERS = frozenset(one.name for one in fields(Evidence))


def collect(
    target: Path,
    *,
    measure: Measure | None = None,
    generate: Generate | None = None,
    other: Surrounding | None = None,
) -> Contents:
    """Return the contents of the report on a bundle or a minify run, without paths of this machine."""
    around = surroundings_of(target)
    manifest = read_manifest(around.bundle)
    is_own(around.bundle)  # a damaged bundle is an error, one's own and a stranger's
    verdict = verdict_in(manifest.verdict)
    notes = [*around.notes, *manifest.notes]
    if verdict is None and manifest.verdict is not None:
        notes.append("the recorded verdict cannot be read")

    measured = Measured()
    if measure is not None and (verdict is None or verdict.kind in _HAS_VALUES):
        measured = measure(around.bundle, manifest)
        notes.append(_note_on(measured, verdict))
    verdict = verdict or measured.verdict

    evidence = _evidence_on(
        around,
        manifest,
        verdict,
        measured.measurements,
        generate,
        reason=measured.note or ("" if measure is not None else _NOT_RUN),
    )
    located, minified = around.located or around.located_in_minimal, around.minified
    original, minimal = _pictures(around, notes)
    ours = Surrounding(manifest.environment, settings_of(manifest))
    notes += (*(located.notes if located else ()), *(minified.notes if minified else ()))
    compiler, shown = manifest.compiler.name, _shown(around.bundle, target)
    guilty = [node.op for node in minimal.nodes if node.guilty] if minimal is not None else []
    op = guilty[0] if len(guilty) == 1 else ""
    op = located.op.op if located is not None and located.op is not None else op
    return shareable(
        Contents(
            title=title_of(
                verdict,
                compiler=compiler,
                op=op,
                devices=devices_of(manifest),
                blamed=located.blamed if located is not None else "",
            ),
            sentence=sentence_of(verdict, compiler=compiler),
            bundle=shown,
            verdict=verdict,
            script=around.script,
            script_is_minimal=minified is not None and minified.minimal,
            script_verified=minified is not None and minified.reproduces,
            guilt=culprit_of(located),
            located=located,
            minimal=minimal,
            original=original,
            errors=measured.errors,
            steps=_steps(minified),
            explained=minified.explained if minified is not None else (),
            environment=manifest.environment,
            differences=differences(ours, other) if other is not None else (),
            against=other.name if other is not None else "",
            settings=ours.settings,
            traceback=verdict.raised.traceback if verdict is not None and verdict.raised else "",
            next_steps=_next_steps(around, verdict, shown),
            notes=tuple(dict.fromkeys(note for note in notes if note)),
            created=manifest.created,
            bucket=bucket_in(around).fingerprint,
            evidence=evidence,
        )
    )


def _note_on(measured: Measured, recorded: Verdict | None) -> str:
    """Return a note if the run has no values or differs from the recorded verdict; else empty."""
    verdict = measured.verdict
    if verdict is None:
        return f"no map of the errors: {measured.note}"
    if recorded is None or verdict.kind is recorded.kind:
        return ""
    if not verdict.fails:
        return f"no map of the errors: it does not fail on this machine ({verdict.kind.value})"
    return f"on this machine it fails in another way: {verdict}"


def _pictures(around: Surroundings, notes: list[str]) -> tuple[Picture | None, Picture | None]:
    """Return the graph of the bundle and the minimal one, with the culprit marked."""
    if around.minimal == around.bundle:
        return None, _picture("minimal graph", around.bundle, around.located, notes)
    if around.guilty_graph is not None:
        original = _picture("failing graph", around.guilty_graph, around.located, notes)
    else:
        original = _picture("original graph", around.bundle, around.located, notes)
    if around.minimal is None:
        return original, None
    minimal = _picture("minimal graph", around.minimal, around.located_in_minimal, notes)
    if minimal is not None and not any(node.guilty for node in minimal.nodes):
        minimal = replace(minimal, nodes=_marked(minimal.nodes, around.located))
    return original, minimal


def _picture(title: str, bundle: Path, located: Located | None, notes: list[str]) -> Picture | None:
    guilty = located.op.node if located is not None and located.op is not None else ""
    try:
        return picture_of(title, read_graph_text(bundle), guilty=guilty)
    except TorchReproError as exc:
        notes.append(exc.fact)
        return None


def _marked(nodes: tuple[Node, ...], located: Located | None) -> tuple[Node, ...]:
    """Mark the culprit in a minimal graph that was not located: the only op, or the only one of its kind.

    Minifying renames nodes, so names cannot be compared.
    """
    ops = [node.name for node in nodes if node.kind == "op" and node.op != "operator.getitem"]
    alike = [node.name for node in nodes if located and located.op and node.op == located.op.op]
    for found in (alike, ops):
        if len(found) == 1:
            return tuple(replace(node, guilty=node.name == found[0]) for node in nodes)
    return nodes


def _steps(minified: Minified | None) -> tuple[Adoption, ...]:
    """Return the sizes while minifying, the original first; empty if they were not recorded."""
    if minified is None or not minified.history:
        return ()
    sizes = minified.start_ops, minified.start_inputs, minified.start_elements
    return Adoption(0, 0.0, *sizes, "original"), *minified.history


def _next_steps(around: Surroundings, verdict: Verdict | None, shown: str) -> tuple[str, ...]:
    """Return the commands that would add what is missing."""
    shown = shlex.quote(shown)
    if verdict is None:
        return (f"torchrepro check {shown} tells whether it fails",)
    if not verdict.fails:
        return ()
    steps = []
    if "locate" in around.claims or (around.located is None and around.located_in_minimal is None):
        steps.append(f"torchrepro locate {shown} finds the culprit")
    if "minify" in around.claims or around.minified is None:
        steps.append(f"torchrepro minify {shown} makes it as small as possible")
    elif not around.minified.minimal:
        steps.append(f"torchrepro minify {shown} continues what was stopped")
    return tuple(steps)


def _shown(bundle: Path, target: Path) -> str:
    """Return the bundle as the user named it, without an absolute path."""
    path = target if bundle == target else bundle
    return path.name if os.path.isabs(path) else str(path)


def measured(
    bundle: Path,
    manifest: Manifest,
    *,
    trusted: tuple[str, ...] = (),
    time_limit: float | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Measured:
    """Run a bundle in a fresh process; an error becomes a note, because the rest of the report is valid."""
    code: list[str] = []

    def take(message: Mapping[str, Any]) -> None:
        code.extend(filter(None, [message.get("code")]))

    try:
        with isolation_for(bundle, manifest, time_limit, trusted, on_phase) as (payload, how):
            outcome = run_without_reference_if_it_dies(
                lambda **more: run_isolated(_MEASURE, {**payload, **more}, on_message=take, **how)
            )
        if outcome.result is None:
            return Measured(verdict_of(outcome, how["time_limit"]))
        found = understood(outcome.result, dict[str, Any])
        verdict = understood(found.get("verdict"), Verdict)
        maps = understood(found.get("maps"), tuple[ErrorMap, ...], strict=False)
        answers = understood(found.get("answers"), dict[str, str])
        return Measured(
            replace(verdict, seconds=outcome.seconds), maps, measurements=Measurements(answers, tuple(code))
        )
    except (TorchReproError, HarnessError) as exc:
        return Measured(note=f"could not be run for this report: {str(exc).splitlines()[0]}")


def _evidence_on(
    around: Surroundings,
    manifest: Manifest,
    verdict: Verdict | None,
    measured: Measurements,
    generate: Generate | None,
    *,
    reason: str = "",
) -> Evidence:
    """Return the answers on a bundle; `reason` says why it was not run, and `generate` is None then."""
    answers = {name: text for name, text in measured.answers.items() if name in _ANSWERS}
    if verdict is not None and not verdict.fails:
        answers |= dict.fromkeys((*_NEED_VALUES, "same_kernel"), "not applicable: it does not fail")
    elif verdict is not None and verdict.kind not in _HAS_VALUES:
        answers |= dict.fromkeys(_NEED_VALUES, f"not applicable: {verdict.kind.value}, no values to compare")
        answers["same_kernel"] = "unknown: kernels are compared where values are wrong"
    elif reason and not answers:
        answers |= dict.fromkeys(_NEED_VALUES, f"unknown: {reason}")
    if generate is not None and "same_kernel" not in answers:
        answers["same_kernel"] = _kernels(around, measured, generate)
    history = version_history(around.bundle, own=is_own(around.bundle))
    if history.words:
        answers["first_bad"] = history.words
    labels = labels_of(
        verdict,
        around.located or around.located_in_minimal,
        compiler=manifest.compiler.name,
        devices=devices_of(manifest),
        dynamic=bool(manifest.symbols),
        regression=history.regressed,
    )
    return Evidence(
        **answers,
        labels=labels,
        script=script_in_words(around.script),
        unit_test=_unit_test(around, manifest) if around.minimal is not None else "",
    )


def _kernels(around: Surroundings, measured: Measurements, generate: Generate) -> str:
    """Say whether the minimal repro compiles a kernel of the original."""
    if around.minimal is None or around.minimal == around.bundle:
        return "not applicable: the bundle was not minified"
    try:
        original = measured.code or generate(around.bundle)
        minimal = generate(around.minimal)
    except (TorchReproError, HarnessError) as exc:
        return f"unknown: {exc.fact if isinstance(exc, TorchReproError) else str(exc).splitlines()[0]}"
    return compare_kernels(original, minimal)


def _unit_test(around: Surroundings, manifest: Manifest) -> str:
    """Return the minimal script as a test; empty where it is no test."""
    if not around.script or manifest.expected is None or not manifest.expected.kind.fails:
        return ""
    try:
        return pytest_form(around.script, manifest.expected.kind, "compiled_as_eager")
    except TorchReproError:
        return ""
