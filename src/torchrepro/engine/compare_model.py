"""Judge a user's model in a fresh process, and save what fails in it. Needs no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.check_bundle import OnPhase, check_bundle, first_failing
from torchrepro.engine.processes.fresh_process import (
    compiler_environment,
    judged_in_isolation,
    raise_reported,
    result_in_isolation,
    run_isolated,
)
from torchrepro.nouns.contracts import OperatorChecks, read_checks
from torchrepro.nouns.repro import Compared, ModelRequest, telling_environment
from torchrepro.nouns.verdict import Signature, Verdict

_SIZE_CAP = 1 << 30


def compare_model(
    request: ModelRequest,
    *,
    save_to: Path | None = None,
    size_cap: int = _SIZE_CAP,
    time_limit: float = 300.0,
    check_ops: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> Compared:
    """Judge a user's model; if it fails and `save_to` is given, save the failing graph as a bundle.

    Tensors beyond `size_cap` bytes in total are kept as recipes, and the bundle says which. `check_ops` looks
    first at what the custom operators promise that it calls.
    """
    request = replace(request, environ=telling_environment())
    operators = OperatorChecks()
    if check_ops:
        operators = check_operators(request, time_limit=time_limit, on_phase=on_phase)
    verdict = judged_in_isolation(
        "torchrepro.execute.user_model:compare",
        msgspec.to_builtins(request),
        time_limit=time_limit,
        environ=compiler_environment(),
        on_phase=on_phase,
    )
    compared = Compared(verdict, Signature.of(verdict), operators=operators)
    if save_to is None or not verdict.fails:
        return compared
    bundle, notes = save_failing_graph(
        request, verdict, save_to, size_cap=size_cap, time_limit=time_limit, on_phase=on_phase
    )
    return replace(compared, bundle=bundle, notes=notes)


def check_operators(request: ModelRequest, *, time_limit: float, on_phase: OnPhase) -> OperatorChecks:
    """Check the custom operators that a user's model calls, in a process of its own: one may crash."""
    with tempfile.TemporaryDirectory(prefix="torchrepro-operators-") as directory:
        log = Path(directory) / "checks.jsonl"
        outcome = run_isolated(
            "torchrepro.execute.operator_contracts:check_model",
            {"request": msgspec.to_builtins(request), "log": str(log)},
            time_limit=time_limit,
            environ=compiler_environment(),
            on_phase=on_phase,
        )
        raise_reported(outcome)
        return read_checks(log)


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
    from torchrepro.bundle.load import load_verified
    from torchrepro.script.save_bundle import save_bundle

    with tempfile.TemporaryDirectory(prefix="torchrepro-") as scratch:
        recorded = record_graphs(
            request, Path(scratch), size_cap=size_cap, time_limit=time_limit, on_phase=on_phase
        )
        if recorded is None:
            return None, ("no bundle: recording the graphs did not finish",)
        trusted = {path: names_it_runs(read_manifest(path)) for path in recorded.bundles}
        judged = (
            (path, check_bundle(path, time_limit=time_limit, trusted=names, on_phase=on_phase).verdict)
            for path, names in trusted.items()
        )
        found = first_failing(judged, verdict.kind)
        if found is not None:
            path, seen = found
            repro = replace(load_verified(path), expected=Signature.of(seen))
            target = save_to / f"{new_run_id()}-{verdict.kind.value}"
            bundle = save_bundle(repro, target, verdict=seen, size_cap=size_cap)
            return bundle, recorded.problems
    count = len(recorded.bundles)
    reason = (
        f"no bundle: none of the {count} captured graphs fails by itself, so capture is the suspect"
        if count
        else "no bundle: no graph could be recorded"
    )
    return None, (reason, *recorded.problems)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A bundle of each graph that capture makes of a model, and what could not be recorded."""

    bundles: tuple[Path, ...]
    problems: tuple[str, ...]


def record_graphs(
    request: ModelRequest,
    directory: Path,
    *,
    size_cap: int = _SIZE_CAP,
    time_limit: float,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    on_phase: OnPhase = lambda phase: None,
) -> Recorded | None:
    """Write the graphs of a user's model as bundles, unjudged; None where that did not finish.

    `configs` are settings of the compilers by module and name, on top of the user's.
    """
    on_phase("record")
    outcome = run_isolated(
        "torchrepro.execute.user_model:record",
        {
            "request": msgspec.to_builtins(request),
            "directory": str(directory),
            "size_cap": size_cap,
            "configs": configs or {},
        },
        time_limit=time_limit,
        environ=compiler_environment(),
    )
    raise_reported(outcome)
    if outcome.result is None:
        return None
    return Recorded(tuple(map(Path, outcome.result["bundles"])), tuple(outcome.result["problems"]))


def save_whole_call(
    request: ModelRequest,
    verdict: Verdict,
    save_to: Path,
    *,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Path:
    """Save the call of a user's model itself as a bundle, for a failure that none of its graphs shows."""
    on_phase("record")
    path = save_to.absolute() / f"{new_run_id()}-{verdict.kind.value}"
    request = replace(request, environ=telling_environment())
    result_in_isolation(
        "torchrepro.execute.user_model:keep_call",
        {"request": msgspec.to_builtins(request), "path": str(path), "size_cap": _SIZE_CAP},
        time_limit=time_limit,
        environ=compiler_environment(),
        unfinished="the whole call could not be saved",
        next_step="raise the time limit with torchrepro compare --time-limit",
    )
    return path
