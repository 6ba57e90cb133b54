"""What maintainers ask first about a failure, as data and as one section for every format.

Would torch's own comparison with a float64 reference call it a failure? Would default tolerances? Is it the
rounding of fused code? Does the minimal repro compile the kernel that failed? What is not known says why.
Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchrepro.nouns.sections import Facts, Section, counted

SHORT = 100
"""Maximum lines of a script that maintainers read in an issue."""
_NOT_RUN = "unknown: the bundle was not run for this report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The answers, each in words; `unknown: REASON` where there is none."""

    same: str = _NOT_RUN
    """What `same` of torch's own benchmarks says, given the float64 result."""
    default_tolerances: str = _NOT_RUN
    """What `torch.testing.assert_close` says."""
    precision_casts: str = _NOT_RUN
    """Whether inductor's `emulate_precision_casts` makes it go away."""
    same_kernel: str = _NOT_RUN
    """Whether the original and the minimal repro compile the same kernel."""
    first_bad: str = "unknown: torchrepro bisect BUNDLE finds it"
    labels: tuple[str, ...] = ()
    """By PyTorch's public triage rubric."""
    script: str = ""
    """How long the script is, and whether its values are in it."""
    unit_test: str = ""
    """The script as a failing test for pytest; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a run of a bundle tells: answers by the names of `Evidence`, and the generated code."""

    answers: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()


def section_of(evidence: Evidence) -> Section:
    """Return the section of a report; the unit test has a place of its own in an issue and on the page."""
    return Section("what maintainers ask first", (Facts.of(evidence_rows(evidence)),))


def evidence_rows(evidence: Evidence | None) -> list[tuple[str, str]]:
    """Return questions and answers; none without evidence."""
    if evidence is None:
        return []
    rows = (
        ("same, fp64", evidence.same),
        ("assert_close", evidence.default_tolerances),
        ("casts", evidence.precision_casts),
        ("kernel", evidence.same_kernel),
        ("first bad", evidence.first_bad),
        ("script", evidence.script),
        ("labels", ", ".join(evidence.labels)),
    )
    return [(name, text) for name, text in rows if text]


def script_in_words(script: str) -> str:
    """Say how long a script is, and whether its values are in it or in files next to it."""
    if not script:
        return "unknown: the bundle has no script"
    lines = len(script.splitlines())
    length = f"{counted(lines, 'line')}{'' if lines < SHORT else f', {SHORT} or more'}"
    apart = re.search(r"\"(?:[\w.]*\.)?(?:tensors\.safetensors|values\.pt)\"", script)
    return f"{length}, {'its values are in files next to it' if apart else 'values inline'}"
