"""What maintainers ask first about a failure, as data and as one section for every format.

Would torch's own comparison with a float64 reference call it a failure? Would default tolerances? Is it the
rounding of fused code? Does the minimal repro compile the kernel that failed? What is not known says why.
Needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrepro.bundle.read import read_small_file
from torchrepro.engine.generated_code import digest_code, normalise_code
from torchrepro.nouns.results import Located
from torchrepro.nouns.sections import Facts, Section, counted
from torchrepro.nouns.verdict import Kind, Verdict

SHORT = 100
"""Maximum lines of a script that maintainers read in an issue."""
_LABELS = {
    "inductor": "inductor",
    "aot_eager": "aotdispatch",
    "eager": "dynamo",
    "aot_inductor": "aotinductor",
}
_STAGES = {"capture": "dynamo", "aot": "aotdispatch", "decomposition": "decompositions"}
_KINDS = {
    Kind.MISMATCH: "correctness (silent)",
    Kind.NON_FINITE: "NaNs and Infs",
    Kind.CRASH: "crash",
}
_URGENT = (Kind.MISMATCH, Kind.NON_FINITE, Kind.CRASH)
"""PyTorch's rubric calls wrong results without an error, crashes and regressions `high priority`."""
_KERNEL = re.compile(r"r?'''(.*?)'''", re.DOTALL)
_NAME = re.compile(r"\b(?:cpp|triton)_\w*(?:fused|poi|red|per)\w*")
_SIZE = re.compile(r"\b\d+L?\b")
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


def compared_kernels(original: Measurements, minimal: Measurements | None) -> str:
    """Say whether a kernel of the minimal repro is one of the original's: exactly, or but for its sizes."""
    if minimal is None:
        return "not applicable: the bundle was not minified"
    if not original.code or not minimal.code:
        return "unknown: inductor generated no code"
    for change, words in ((str, "yes"), (_without_sizes, "yes, but for sizes")):
        ours, theirs = (
            {digest_code(change(one)) for one in kernels_in(side.code)} for side in (minimal, original)
        )
        if shared := sorted(ours & theirs):
            return f"{words}: {shared[0][:12]} is one of {counted(len(theirs), 'kernel')} of the original"
    mine, others = (sorted(map(digest_code, kernels_in(side.code))) for side in (minimal, original))
    return f"no: {_digests(mine)} in the minimal repro, {_digests(others)} in the original"


def kernels_in(codes: Iterable[str]) -> list[str]:
    """Return the normalised text of each kernel, without its name, which lists the ops fused around it.

    Code that only calls libraries has no kernel: then the calls are compared.
    """
    texts = list(codes)
    found = [kernel for text in texts for kernel in _KERNEL.findall(text)]
    return [_NAME.sub("<kernel>", normalise_code(text)) for text in found or texts]


def _without_sizes(kernel: str) -> str:
    return _SIZE.sub("<n>", kernel)


def _digests(found: list[str]) -> str:
    return ", ".join(one[:12] for one in found[:2]) + (", ..." if len(found) > 2 else "")


def script_in_words(script: str) -> str:
    """Say how long a script is, and whether its values are in it or in files next to it."""
    if not script:
        return "unknown: the bundle has no script"
    lines = len(script.splitlines())
    length = f"{counted(lines, 'line')}{'' if lines < SHORT else f', {SHORT} or more'}"
    apart = re.search(r"\"(?:[\w.]*\.)?(?:tensors\.safetensors|values\.pt)\"", script)
    return f"{length}, {'its values are in files next to it' if apart else 'values inline'}"


def labels_of(
    verdict: Verdict | None,
    located: Located | None,
    *,
    compiler: str,
    devices: Iterable[str] = (),
    dynamic: bool = False,
    regression: bool = False,
) -> tuple[str, ...]:
    """Suggest labels of PyTorch's tracker; none for a failure of the user's operator, or for none at all."""
    if verdict is None or not verdict.fails or (located is not None and located.blamed):
        return ()
    stage = located.stage.value if located is not None else ""
    module = _STAGES.get(stage) or _LABELS.get(compiler)
    return tuple(_labels(verdict.kind, module, set(devices), dynamic=dynamic, regression=regression))


def _labels(
    kind: Kind, module: str | None, devices: set[str], *, dynamic: bool, regression: bool
) -> Iterator[str]:
    yield "oncall: pt2"
    if module:
        yield f"module: {module}"
    if kind in _KINDS:
        yield f"module: {_KINDS[kind]}"
    if module == "inductor" and not devices - {"cpu"}:
        yield "oncall: cpu inductor"
    if dynamic:
        yield "module: dynamic shapes"
    if regression:
        yield "module: regression"
    if kind in _URGENT or regression:
        yield "high priority"


def first_bad_version(bundle: Path, *, own: bool) -> str:
    """Return the answer of `torchrepro bisect` next to a bundle, in words; empty where there is none."""
    whole = bundle.absolute()
    try:
        found = json.loads(read_small_file(whole.with_name(f"{whole.name}.bisected") / "result.json"))
        bad, good = found["first_bad"], found["last_good"]
        words = f"{_version(bad)}, last good {_version(good)}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return words if own else f"{words} (somebody's claim: nothing in it was verified here)"


def _version(row: Mapping[str, Any]) -> str:
    commit = str(row.get("commit") or "")[:12]
    return f"{str(row.get('torch') or row['setting'])[:60]}{f' ({commit})' if commit else ''}"
