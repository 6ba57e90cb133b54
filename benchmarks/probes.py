"""Do the probes cry wolf? Probes healthy models of `transformers` and torch's own operator tests.

    python -m benchmarks.probes models --out .cache/probes.jsonl --minutes 60
    python -m benchmarks.probes operators --dtype float32 --every 8 --out .cache/operators.jsonl

Each answer is a line of the file; the same command continues where it was stopped, and prints the table. What
is not a pass is printed: a false alarm, to be fixed in the probe, or a bug of torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.bundle.load import load_verified
from torchrepro.engine.probe_target import ONLY_SIZES
from torchrepro.engine.processes.fresh_process import compiler_environment, run_isolated
from torchrepro.execute.probes.probe_repro import probe_repro
from torchrepro.execute.user_model import record
from torchrepro.nouns.probe import COSTS, PROBES, Probe
from torchrepro.nouns.repro import ModelRequest
from torchrepro.nouns.verdict import Kind

OPERATOR = "operator_"
OF_VALUES = [kind for kind in PROBES if kind not in COSTS]
_KEPT = {"size_cap": 1 << 30}
_OF_SYMBOLS = (Kind.SIZES, Kind.BATCH)
_PATH = os.pathsep.join(
    [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)
"""Where a fresh process finds the job below."""


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the function that builds a model, or the call of an operator, by its name."""
    from benchmarks.frontend.models import MODELS

    if name.startswith(OPERATOR):
        return lambda: _operator(name.removeprefix(OPERATOR))
    for model in MODELS:
        if model.name == name:
            return lambda: (model.build(), (), model.call(0))
    raise AttributeError(name)


def _operator(named: str) -> Any:
    from torch.testing._internal.common_methods_invocations import op_db

    dtype_name, _, position = named.partition("__")
    dtype, operator = getattr(torch, dtype_name), op_db[int(position)]
    sample = list(operator.sample_inputs("cpu", dtype, requires_grad=False))[:2][-1]

    def call(value: Any, *args: Any) -> Any:
        return operator(value, *args, **sample.kwargs)

    return call, (sample.input, *sample.args)


def targets(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield what is probed: its name, and the function that builds it."""
    if options.what == "models":
        from benchmarks.frontend.models import chosen

        yield from ((model.name, model.name) for model in chosen(options.names))
        return
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = getattr(torch, options.dtype)
    for position in range(0, len(op_db), options.every):
        if dtype in op_db[position].supported_dtypes("cpu"):
            yield op_db[position].name, f"{OPERATOR}{options.dtype}__{position}"


def asked(path: Path) -> dict[str, dict[str, Any]]:
    """Return the answers of earlier runs by name."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def probe(name: str, function: str, options: argparse.Namespace, kinds: list[Kind]) -> dict[str, Any]:
    """Return the answers about one model; all probes in one process, which imports torch once."""
    request = ModelRequest(f"benchmarks.probes:{function}", backward=None if options.backward else False)
    row: dict[str, Any] = {"name": name, "answers": []}
    payload = {
        "request": msgspec.to_builtins(request),
        "kinds": [kind.value for kind in kinds],
        "seconds": options.seconds,
    }

    def take(message: Mapping[str, Any]) -> None:
        row["answers"].extend([message["answer"]] if "answer" in message else [])

    outcome = run_isolated(
        "benchmarks.probes:probe_all",
        payload,
        time_limit=options.time_limit,
        environ={**compiler_environment(), "PYTHONPATH": _PATH},
        on_message=take,
    )
    if outcome.result is None:
        error = outcome.error or {"fact": outcome.death if not outcome.timed_out else "out of time"}
        row["error"] = error["fact"]
    return row


def probe_all(payload: dict[str, Any], phase: Any) -> int:
    """Record the graphs of a model and ask every probe about each: a job. Each answer is sent as it comes."""
    request = msgspec.convert(payload["request"], ModelRequest)
    dynamic = replace(request, compiler=replace(request.compiler, dynamic=True))
    with tempfile.TemporaryDirectory() as scratch:
        paths = {
            False: record({"request": msgspec.to_builtins(request), "directory": scratch, **_KEPT}, phase),
            True: None,
        }
        for kind in map(Kind, payload["kinds"]):
            if kind in _OF_SYMBOLS and paths[True] is None:
                directory = Path(scratch) / "dynamic"
                directory.mkdir()
                asked = {"request": msgspec.to_builtins(dynamic), "directory": str(directory)}
                paths[True] = record({**asked, **_KEPT, "configs": ONLY_SIZES}, phase)
            for path in paths[kind in _OF_SYMBOLS]["bundles"]:
                repro = load_verified(Path(path))
                asked_at = time.monotonic()
                finding = probe_repro(replace(repro, probe=Probe(kind, seconds=payload["seconds"])))
                verdict = finding.verdict
                answer = {"probe": kind.value, "verdict": verdict.kind.value, "summary": verdict.summary}
                took = round(time.monotonic() - asked_at, 1)
                phase.send(answer={**answer, "notes": list(verdict.notes), "seconds": took})
    return len(paths[False]["bundles"])


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    counts: dict[str, Counter[str]] = {}
    for row in rows.values():
        for answer in row["answers"]:
            counts.setdefault(answer["probe"], Counter())[answer["verdict"]] += 1
            if answer["verdict"] not in ("pass", "not_comparable"):
                print(
                    f"ALARM {row['name']} {answer['probe']}: {answer['verdict']}: {answer['summary'][:300]}"
                )
        if "error" in row:
            print(f"could not be asked: {row['name']}: {row['error'][:200]}")
    print(f"| probe | asked of {len(rows)} | not asked | alarms |\n|---|---|---|---|")
    for kind, found in counts.items():
        skipped = found["not_comparable"]
        print(
            f"| {kind} | {found.total() - skipped} | {skipped} | {found.total() - skipped - found['pass']} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", choices=["models", "operators"])
    parser.add_argument("names", nargs="*", help="only these models")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(OF_VALUES), help="probes, by name")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--every", type=int, default=8, help="only every N-th operator")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each probe")
    parser.add_argument("--time-limit", type=float, default=600.0)
    parser.add_argument("--backward", action="store_true", help="with gradients")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    kinds = [Kind(name) for name in options.only.split(",")]
    known, deadline = asked(options.out), time.monotonic() + 60 * options.minutes
    for name, function in targets(options):
        if name in known:
            continue
        if time.monotonic() > deadline:
            break
        known[name] = probe(name, function, options, kinds)
        with options.out.open("a") as file:
            file.write(json.dumps(known[name]) + "\n")
        told = " ".join(f"{each['probe']}={each['verdict']}" for each in known[name]["answers"])
        print(f"{name}: {told} {known[name].get('error', '')[:200]}", flush=True)
    print_table(known)


if __name__ == "__main__":
    main()
