"""Does the judge cry wolf? Judges torch's own operator tests, compiled with inductor, forward and backward.

    python -m benchmarks.false_alarms.operators --dtype float32 --every 2

Every operator that inductor gets right must pass. Each that did not is printed, then the counts: a false
alarm, to be fixed in the judge, or a bug of torch.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter
from typing import Any

import torch

from torchrepro.judge.execute import observe_call, run_fwd_maybe_bwd
from torchrepro.judge.models import Subject, judge
from torchrepro.judge.reference import true_run
from torchrepro.nouns.verdict import Blame, Kind, Verdict


def judge_operator(operator: Any, dtype: torch.dtype) -> Verdict | None:
    """The verdict on an operator with the second of its sample inputs (the first is often empty)."""
    gradients = operator.supports_autograd and dtype.is_floating_point
    samples = list(operator.sample_inputs("cpu", dtype, requires_grad=gradients))[:2]
    if not samples:
        return None
    sample = samples[-1]

    def call(value: Any, /, *args: Any, **kwargs: Any) -> Any:
        return operator(value, *args, **kwargs)

    torch._dynamo.reset()
    compiled, args, named = torch.compile(call), (sample.input, *sample.args), dict(sample.kwargs)
    subject = Subject(
        eager=lambda around: run_fwd_maybe_bwd(call, args, kwargs=named, around=around),
        compiled=lambda around: run_fwd_maybe_bwd(compiled, args, kwargs=named, around=around),
        truth=lambda draws: true_run(observe_call, call, args, named, draws),
    )
    return judge(subject)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--every", type=int, default=2, help="only every N-th operator")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this long")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = getattr(torch, options.dtype)
    operators = {operator.name: operator for operator in op_db[:: options.every]}
    counts: Counter[str] = Counter()
    without_truth = 0
    deadline = time.monotonic() + options.seconds
    for name, operator in operators.items():
        if time.monotonic() > deadline:
            break
        if dtype not in operator.supported_dtypes("cpu"):
            continue
        verdict = judge_operator(operator, dtype)
        if verdict is None:
            continue
        counts[verdict.kind.value] += 1
        without_truth += any("no float64" in note for note in verdict.notes)
        if verdict.kind is not Kind.PASS or verdict.blamed is not Blame.NOBODY:
            print(f"{name}: {verdict} (blamed: {verdict.blamed.value})", flush=True)
    print(f"{options.dtype}: {dict(counts)}, {without_truth} of them without a float64 reference")


if __name__ == "__main__":
    main()
