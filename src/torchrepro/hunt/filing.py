"""Is a bucket worth an issue? Criteria with their reasons, and how usual the program is. Needs no torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.read import read_graph_text, read_manifest
from torchrepro.engine.check_bundle import OnPhase, ask_about_bundle
from torchrepro.engine.other_python import ReplaySettings, ask_interpreter, replay
from torchrepro.engine.processes.fresh_process import understood
from torchrepro.engine.search.run_directory import write_json
from torchrepro.hunt.buckets import BucketDirectory, read
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.sections import counted
from torchrepro.nouns.verdict import Blame, Kind, Verdict
from torchrepro.report.environments import settings_of
from torchrepro.report.graph_picture import picture_of
from torchrepro.report.run_files import minified_in

_RUNS = 3
_SECONDS = 300.0
_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)
_USUAL = {"float32", "int64", "bool"}
_FREQUENT = {*_USUAL, "float16", "bfloat16", "float64", "int32"}


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of the gate: whether it holds, and why; None where it could not be told."""

    name: str
    holds: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Usual:
    """How usual a program is: each number is better the smaller it is, and they count in this order."""

    settings: int
    """Settings that are not torch's default."""
    dtype: int
    """0: float32, int64, bool; 1: other frequent ones; 2: rare ones."""
    private: int
    """Ops that are not public API."""
    values: int
    """0: ordinary values; 1: very large or subnormal; 2: NaN, infinite or empty."""
    ops: int
    words: str = ""

    @property
    def rank(self) -> tuple[int, ...]:
        return self.settings, self.dtype, self.private, self.values, self.ops


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a bucket is worth an issue."""

    criteria: tuple[Criterion, ...]
    usual: Usual

    @property
    def worth(self) -> bool:
        return all(criterion.holds for criterion in self.criteria)

    @property
    def missing(self) -> tuple[Criterion, ...]:
        return tuple(criterion for criterion in self.criteria if not criterion.holds)


@dataclass(frozen=True, slots=True)
class Examined:
    """What a run of a minimal bundle showed (`examine.py`)."""

    reason: str = ""
    """Why it could not be run; empty if it was."""
    verdict: Verdict | None = None
    dtypes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """What is unusual in the inputs: `nan`, `inf`, `subnormal`, `huge`, `empty`."""
    differs_by_default: bool | None = None
    """Whether `torch.testing.assert_close` fails; None: there is nothing that it could compare."""
    close: str = ""
    same_draws: bool | None = None
    """Whether both sides left the random generators in one state; None: one of them did not run."""
    ties: tuple[str, ...] = ()
    """Differing results that are other places of equal elements."""
    without_truth: tuple[str, ...] = ()
    """Differing floating results for which there is no float64 result."""

    @property
    def wrong(self) -> list[str]:
        comparison = self.verdict.comparison if self.verdict is not None else None
        return [leaf.path for leaf in comparison.differing] if comparison is not None else []


def gate_of(bucket: BucketDirectory, *, on_phase: OnPhase = lambda phase: None) -> Gate:
    """Return the gate of a bucket: as it was answered before, else by running its minimal bundle."""
    known = read(bucket.gate, Gate)
    if known is not None:
        return known
    gate = _asked(bucket, on_phase)
    write_json(bucket.gate, msgspec.to_builtins(gate))
    return gate


def _asked(bucket: BucketDirectory, on_phase: OnPhase) -> Gate:
    minified = minified_in(bucket.minified)
    minimal = bucket.minified / "minimal" if minified is not None else bucket.bundle
    manifest = read_manifest(minimal)
    on_phase("examining the minimal repro")
    try:
        answer = ask_about_bundle("torchrepro.hunt.examine:examine", minimal, {}, time_limit=_SECONDS)
        examined = understood(answer, Examined, strict=False)
    except (TorchReproError, HarnessError) as exc:
        examined = Examined(str(exc).splitlines()[0])
    criteria = (
        _tolerances(manifest, examined),
        order_free(examined),
        _draws(examined),
        _truth(manifest, examined),
        _repeats(minimal, on_phase),
        _defaults(manifest, minified is not None and minified.reproduces),
    )
    return Gate(criteria, _usual(minimal, manifest, examined))


def _kind_of(manifest: Manifest) -> Kind | None:
    return manifest.expected.kind if manifest.expected is not None else None


def _tolerances(manifest: Manifest, examined: Examined) -> Criterion:
    name = "default tolerances fail"
    kind = _kind_of(manifest)
    if kind is not None and kind not in _VALUES:
        return Criterion(name, True, f"not applicable: {kind.value}, no values to compare")
    if examined.differs_by_default is None and examined.wrong:
        return Criterion(name, True, "what differs is no tensor that could be close")
    return Criterion(name, examined.differs_by_default, examined.close or f"unknown: {examined.reason}")


def order_free(examined: Examined) -> Criterion:
    """Say whether what differs is more than the choice among equal elements (`argmax`, `topk`, `sort`)."""
    name = "no choice among equals"
    if examined.wrong and set(examined.wrong) <= set(examined.ties):
        return Criterion(name, False, f"{', '.join(examined.ties)}: other places of equal elements")
    if examined.reason:
        return Criterion(name, None, f"unknown: {examined.reason}")
    return Criterion(name, True, "what differs is not only the places of equal elements")


def _draws(examined: Examined) -> Criterion:
    name = "random state equal"
    if examined.same_draws is None:
        return Criterion(name, True, "not applicable: one side gives no result")
    words = "both sides leave the generators in one state"
    return Criterion(name, examined.same_draws, words if examined.same_draws else "the sides draw otherwise")


def _truth(manifest: Manifest, examined: Examined) -> Criterion:
    name = "outside of what float64 allows"
    kind = _kind_of(manifest)
    if kind is not None and kind not in _VALUES:
        return Criterion(name, True, f"not applicable: {kind.value}")
    if examined.verdict is None:
        return Criterion(name, None, f"unknown: {examined.reason or 'it was not run'}")
    if examined.without_truth:
        return Criterion(name, None, f"unknown: no float64 result for {', '.join(examined.without_truth)}")
    if examined.verdict.fails and examined.verdict.blamed is Blame.COMPILED:
        return Criterion(name, True, examined.verdict.summary)
    return Criterion(name, False, f"the judge says: {examined.verdict}")


def _repeats(minimal: Path, on_phase: OnPhase) -> Criterion:
    """Run it in fresh processes with fresh caches: the same failure each time?"""
    name = f"the same in {_RUNS} fresh runs"
    interpreter = ask_interpreter(Path(sys.executable))
    for number in range(1, _RUNS + 1):
        on_phase(f"fresh run {number} of {_RUNS}")
        run, _ = replay(minimal, interpreter, ReplaySettings(_SECONDS))
        if run.cannot_run:
            return Criterion(name, None, f"unknown: {run.cannot_run}")
        if not run.reproduces:
            told = run.kind.value if run.kind is not None else "no answer"
            return Criterion(name, False, f"run {number}: {told}")
    return Criterion(name, True, "each in a fresh process with fresh compile caches")


def _defaults(manifest: Manifest, verified: bool) -> Criterion:
    name = "the script fails on default settings"
    if not verified:
        return Criterion(name, False, "the script was not seen to fail in a fresh process")
    settings = settings_of(manifest)
    if settings:
        return Criterion(name, False, f"it needs {', '.join(sorted(settings))}")
    return Criterion(name, True, "seen in a fresh process")


def _usual(minimal: Path, manifest: Manifest, examined: Examined) -> Usual:
    try:
        ops = [node.op for node in picture_of("", read_graph_text(minimal)).nodes if node.kind == "op"]
    except TorchReproError:
        ops = []
    settings, dtypes = settings_of(manifest), set(examined.dtypes)
    odd = set(examined.values)
    words = (
        "default settings" if not settings else counted(len(settings), "setting"),
        "|".join(examined.dtypes) or "no tensors",
        counted(len(ops), "op"),
        f"values {'|'.join(examined.values)}" if odd else "ordinary values",
    )
    return Usual(
        settings=len(settings),
        dtype=0 if dtypes <= _USUAL else 1 if dtypes <= _FREQUENT else 2,
        private=sum(_is_private(op) for op in ops),
        values=2 if odd & {"nan", "inf", "empty"} else 1 if odd else 0,
        ops=len(ops),
        words=", ".join(words),
    )


def _is_private(op: str) -> bool:
    """Return whether an op is spelled as users do not: by its overload, or with an underscore in front."""
    return op.startswith(("torch.ops.", "aten.", "prims.")) or op.rpartition(".")[2].startswith("_")
