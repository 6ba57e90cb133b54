"""Judge a bundle or a user's model in a fresh process, and save what fails in the model. Needs no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.processes.fresh_process import (
    compiler_environment,
    judged_in_isolation,
    raise_reported,
    result_in_isolation,
    run_isolated,
)
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compared, Frontend, ModelRequest, Place, telling_environment
from torchrepro.nouns.verdict import Kind, Signature, Verdict

OnPhase = Callable[[str], None]
Item = TypeVar("Item")

_SIZE_CAP = 1 << 30


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on a bundle, and what was recorded."""

    verdict: Verdict
    signature: Signature
    expected: Signature | None

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()

    @property
    def reproduces(self) -> bool:
        """Whether it fails as recorded; for a bundle without a record, whether it fails at all."""
        if self.expected is None or not self.expected.kind.fails:
            return self.verdict.fails
        return self.verdict.fails and self.expected.matches(self.signature)

    @property
    def exit_code(self) -> int:
        """0 passes, 1 fails as recorded, 2 fails otherwise, 125 cannot be tested: for `git bisect run`."""
        if not self.verdict.testable:
            return 125
        if not self.verdict.fails:
            return 0
        return 1 if self.reproduces else 2


def check_bundle(
    bundle: Path,
    *,
    time_limit: float | None = None,
    strict: bool = False,
    tolerance: float | None = None,
    trusted: tuple[str, ...] = (),
    frontend: Frontend | None = None,
    on_phase: OnPhase = lambda phase: None,
) -> Checked:
    """Run a bundle and compare its failure with the recorded one.

    The default time limit is 300 s, or for a recorded hang a little more than it took then. `frontend`
    replaces the recorded frontend for a bundle of a whole call.
    """
    manifest = read_manifest(bundle)
    if frontend is not None and manifest.place is not Place.BEFORE_CAPTURE:
        raise TorchReproError(
            f"this bundle is a graph that was captured already ({manifest.place})",
            next_step="leave out --frontend, or save the whole call (torchrepro run --whole)",
        )
    payload = {
        "bundle": str(bundle.resolve()),
        "frontend": frontend,
        "strict": strict,
        "tolerance": tolerance,
        "trusted": list(trusted),
    }
    verdict = judged_in_isolation(
        "torchrepro.execute.judge_repro:check",
        payload,
        time_limit=time_limit or time_limit_of(manifest),
        environ=compiler_environment(manifest.ambient.environ),
        on_phase=on_phase,
    )
    return Checked(verdict, Signature.of(verdict), manifest.expected)


def first_failing(
    judged: Iterable[tuple[Item, Verdict]], kind: Kind | None, expected: Signature | None = None
) -> tuple[Item, Verdict] | None:
    """Return the first item that fails as `expected` says, else the first that fails with this kind.

    The graphs of a call are judged one after the other: those after the culprit need not be compiled.
    """
    alike = None
    for item, verdict in judged:
        if not verdict.fails or (kind is not None and verdict.kind is not kind):
            continue
        if expected is None or expected.matches(Signature.of(verdict)):
            return item, verdict
        alike = alike or (item, verdict)
    return alike


def time_limit_of(manifest: Manifest) -> float:
    """Return the seconds that a bundle may take: 300, or a little more than a recorded hang took."""
    if manifest.expected is None or manifest.expected.kind is not Kind.HANG:
        return 300.0
    recorded = float((manifest.verdict or {}).get("seconds") or 0.0)
    return min(300.0, 30.0 + 2 * recorded)


def compare_model(
    request: ModelRequest,
    *,
    save_to: Path | None = None,
    size_cap: int = _SIZE_CAP,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Compared:
    """Judge a user's model; if it fails and `save_to` is given, save the failing graph as a bundle.

    Tensors beyond `size_cap` bytes in total are kept as recipes, and the bundle says which.
    """
    request = replace(request, environ=telling_environment())
    verdict = judged_in_isolation(
        "torchrepro.execute.user_model:compare",
        msgspec.to_builtins(request),
        time_limit=time_limit,
        environ=compiler_environment(),
        on_phase=on_phase,
    )
    compared = Compared(verdict, Signature.of(verdict))
    if save_to is None or not verdict.fails:
        return compared
    bundle, notes = save_failing_graph(
        request, verdict, save_to, size_cap=size_cap, time_limit=time_limit, on_phase=on_phase
    )
    return replace(compared, bundle=bundle, notes=notes)


def save_failing_graph(
    request: ModelRequest,
    verdict: Verdict,
    save_to: Path,
    *,
    size_cap: int,
    time_limit: float,
    on_phase: OnPhase = lambda phase: None,
) -> tuple[Path | None, tuple[str, ...]]:
    """Record the model's graphs, judge each, and save the first that fails in the same way as the whole."""
    from torchrepro.bundle.load import load_bundle, trust_own
    from torchrepro.script.save_bundle import save_bundle

    with tempfile.TemporaryDirectory(prefix="torchrepro-") as scratch:
        on_phase("record")
        outcome = run_isolated(
            "torchrepro.execute.user_model:record",
            {"request": msgspec.to_builtins(request), "directory": scratch, "size_cap": size_cap},
            time_limit=time_limit,
            environ=compiler_environment(),
        )
        raise_reported(outcome)
        if outcome.result is None:
            return None, ("no bundle: recording the graphs did not finish",)
        trusted = {path: trust_own(read_manifest(path)) for path in map(Path, outcome.result["bundles"])}
        judged = (
            (path, check_bundle(path, time_limit=time_limit, trusted=names, on_phase=on_phase).verdict)
            for path, names in trusted.items()
        )
        found = first_failing(judged, verdict.kind)
        if found is not None:
            path, seen = found
            repro = replace(load_bundle(path, trusted=trusted[path]), expected=Signature.of(seen))
            target = save_to / f"{new_run_id()}-{verdict.kind.value}"
            bundle = save_bundle(repro, target, verdict=seen, size_cap=size_cap)
            return bundle, tuple(outcome.result["problems"])
    count = len(outcome.result["bundles"])
    reason = (
        f"no bundle: none of the {count} captured graphs fails by itself, so capture is the suspect"
        if count
        else "no bundle: no graph could be recorded"
    )
    return None, (reason, *outcome.result["problems"])


def save_whole_call(
    request: ModelRequest,
    verdict: Verdict,
    save_to: Path,
    *,
    size_cap: int = _SIZE_CAP,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Path:
    """Save the call of a user's model itself as a bundle, for a failure that none of its graphs shows."""
    on_phase("record")
    path = save_to.absolute() / f"{new_run_id()}-{verdict.kind.value}"
    request = replace(request, environ=telling_environment())
    result_in_isolation(
        "torchrepro.execute.user_model:keep_call",
        {"request": msgspec.to_builtins(request), "path": str(path), "size_cap": size_cap},
        time_limit=time_limit,
        environ=compiler_environment(),
        unfinished="the whole call could not be saved",
        next_step="raise the time limit with torchrepro compare --time-limit",
    )
    return path
