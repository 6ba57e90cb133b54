"""Collect what maintainers ask first: from the run of the bundle, its script, and results around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from torchrepro.bundle.manifest import Manifest, devices_of
from torchrepro.bundle.provenance import is_own
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.report.evidence import (
    Evidence,
    Measurements,
    compared_kernels,
    first_bad_version,
    labels_of,
    script_in_words,
)
from torchrepro.report.run_files import Surroundings
from torchrepro.script.test_form import pytest_form

Generate = Callable[[Path], Sequence[str]]
"""Returns the code that the compiler generates for a bundle, without running it."""

_NEED_VALUES = ("same", "default_tolerances", "precision_casts")
_HAS_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)
_ANSWERS = frozenset(one.name for one in fields(Evidence))


def evidence_on(
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
    first_bad = first_bad_version(around.bundle, own=is_own(around.bundle))
    if first_bad:
        answers["first_bad"] = first_bad
    labels = labels_of(
        verdict,
        around.located or around.located_in_minimal,
        compiler=manifest.compiler.name,
        devices=devices_of(manifest),
        dynamic=bool(manifest.symbols),
        regression=bool(first_bad),
    )
    return _evidence(answers, labels, around, manifest)


def _evidence(
    answers: Mapping[str, str], labels: tuple[str, ...], around: Surroundings, manifest: Manifest
) -> Evidence:
    return Evidence(
        **answers,
        labels=labels,
        script=script_in_words(around.script),
        unit_test=_unit_test(around, manifest) if around.minimal is not None else "",
    )


def _kernels(around: Surroundings, measured: Measurements, generate: Generate) -> str:
    """Say whether the minimal repro compiles a kernel of the original."""
    if around.minimal is None or around.minimal == around.bundle:
        return compared_kernels(measured, None)
    try:
        original = measured if measured.code else Measurements(code=tuple(generate(around.bundle)))
        minimal = Measurements(code=tuple(generate(around.minimal)))
    except (TorchReproError, HarnessError) as exc:
        return f"unknown: {exc.fact if isinstance(exc, TorchReproError) else str(exc).splitlines()[0]}"
    return compared_kernels(original, minimal)


def _unit_test(around: Surroundings, manifest: Manifest) -> str:
    """Return the minimal script as a test; empty where it is no test."""
    if not around.script or manifest.expected is None or not manifest.expected.kind.fails:
        return ""
    try:
        return pytest_form(around.script, manifest.expected.kind, "compiled_as_eager")
    except TorchReproError:
        return ""
