"""Jobs that run in a process of their own: each takes plain data and returns plain data."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.judge.models import Phase
from torchrepro.judge.rule import Rule
from torchrepro.nouns.repro import Frontend
from torchrepro.state.ambient import capture_ambient


def check(payload: dict[str, Any], phase: Phase) -> Any:
    """Judge a bundle."""
    phase("load")
    from torchrepro.bundle.load import load_bundle
    from torchrepro.execute.judge_repro import judge_repro

    trusted = tuple(payload.get("trusted", ()))
    if trusted:
        # What is trusted may be in the working directory, as it would for `python script.py`.
        sys.path.insert(0, os.getcwd())
    repro = load_bundle(Path(payload["bundle"]), trusted=trusted)
    if payload.get("frontend") is not None:
        compiler = replace(repro.compiler, frontend=Frontend(payload["frontend"]))
        repro = replace(repro, compiler=compiler)
    strict, tolerance = payload.get("strict", False), payload.get("tolerance")
    rule = Rule(strict=strict, tol=tolerance) if strict or tolerance is not None else None
    verdict = judge_repro(repro, rule=rule, fp64=payload.get("fp64", True), phase=phase)
    return msgspec.to_builtins(verdict.with_notes(*repro.notes))


def compare(payload: dict[str, Any], phase: Phase) -> Any:
    """Judge a user's own model."""
    phase("build")
    from torchrepro.execute.user_model import judge_model
    from torchrepro.nouns.repro import ModelRequest

    return msgspec.to_builtins(judge_model(msgspec.convert(payload, ModelRequest), phase))


def record(payload: dict[str, Any], phase: Phase) -> Any:
    """Write a bundle for every graph that capture makes of a user's model; not judged yet."""
    phase("build")
    from torchrepro.execute.record_graphs import record_graphs, save_graphs
    from torchrepro.execute.user_model import load_trial
    from torchrepro.nouns.repro import ModelRequest

    request = msgspec.convert(payload["request"], ModelRequest)
    trial = load_trial(request)
    phase("record")
    repros, problems = record_graphs(
        trial.record_call,
        trial.compiler,
        environ=request.environ,
        backward=False if trial.only_fwd else None,
    )
    repros = [replace(repro, strict=request.strict, tolerance=trial.tolerance) for repro in repros]
    bundles = save_graphs(repros, Path(payload["directory"]), size_cap=payload["size_cap"])
    return {"bundles": bundles, "problems": problems}


def record_call(payload: dict[str, Any], phase: Phase) -> Any:
    """Write a bundle for every graph that capture makes of a whole call, next to the call's own bundle."""
    phase("load")
    from torchrepro.bundle.load import load_bundle
    from torchrepro.execute import record_graphs

    bundle = Path(payload["bundle"])
    repro = load_bundle(bundle, trusted=tuple(payload["trusted"]))
    return record_graphs.record_call(repro, {"directory": bundle.parent}, phase)


def keep_call(payload: dict[str, Any], phase: Phase) -> Any:
    """Write a bundle of the whole call of a user's model, for what no captured graph shows; not judged."""
    phase("build")
    from torchrepro.bundle.user_calls import repro_of_call
    from torchrepro.execute.user_model import call_context, load_trial
    from torchrepro.nouns.repro import ModelRequest
    from torchrepro.script.save_bundle import save_bundle

    request = msgspec.convert(payload["request"], ModelRequest)
    trial = load_trial(request)
    phase("record")
    built = trial.factory.fresh()
    with call_context(trial.factory.options, request.amp, trial.device_type):
        ambient = replace(capture_ambient(), environ=request.environ)
    repro = repro_of_call(built.model, built.args, built.kwargs, compiler=trial.compiler, ambient=ambient)
    repro = replace(
        repro,
        backward=False if trial.only_fwd else None,
        strict=request.strict,
        tolerance=trial.tolerance,
    )
    return str(save_bundle(repro, Path(payload["path"]), size_cap=payload["size_cap"]))
