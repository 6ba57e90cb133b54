"""What maintainers ask first of a minimal repro, as lines for its docstring.

The questions are those of a report (`report/evidence.py`), asked of the minimal repro itself. What is unknown
or does not apply is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from torchrepro.engine.baseline import Original
from torchrepro.engine.generated_code import compare_kernels
from torchrepro.engine.oracle import IsolatedOracle
from torchrepro.engine.version_history import version_history
from torchrepro.minify.problem import Problem
from torchrepro.nouns.errors import HarnessError, SearchStopped, TorchReproError
from torchrepro.nouns.labels import labels_of
from torchrepro.nouns.verdict import Kind

_WITH_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)
_MEASURE, _GENERATE = "torchrepro.engine.jobs:measure", "torchrepro.engine.jobs:generate"
_NAMES = {"same": "same, fp64", "default_tolerances": "assert_close", "precision_casts": "casts"}


def trust_block(
    problem: Problem, oracle: IsolatedOracle, bundle: Path, original: Original
) -> tuple[str, ...]:
    """Return the lines; an error here must not lose the result itself."""
    try:
        return tuple(_lines(problem, oracle, bundle, original))
    except (TorchReproError, HarnessError, SearchStopped):
        return ()


def _lines(problem: Problem, oracle: IsolatedOracle, bundle: Path, original: Original) -> Iterator[str]:
    best, verdict = problem.best, problem.best_verdict
    if original.is_flaky:
        yield f"flaky: {original.rate}"  # so what a single run shows says nothing
    elif verdict.kind in _WITH_VALUES:
        measured = oracle.ran(_MEASURE, best).result or {"answers": {}, "code": []}
        for name, title in _NAMES.items():
            answer = measured["answers"].get(name, "").partition(";")[0]
            if answer and not answer.startswith(("unknown", "not applicable")):
                yield f"{title}: {answer}"
        code = oracle.ran(_GENERATE, problem.original).result if measured["code"] else None
        if code:
            yield f"kernel: {compare_kernels(code, measured['code'])}"
    history = version_history(bundle, own=not best.stranger)
    if history.words:
        yield f"first bad: {history.words}"
    devices = {value.device.type for value in best.inputs if isinstance(value, torch.Tensor)}
    labels = labels_of(
        verdict,
        None,
        compiler=best.compiler.name,
        devices=devices,
        dynamic=bool(best.symbols),
        regression=history.regressed,
    )
    if labels:
        yield f"labels: {', '.join(labels)}"
