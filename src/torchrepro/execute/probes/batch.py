"""A row alone against the row in its batch: both are as close to the truth as eager is.

The batch is the first dimension of the first result. Whether rows are independent, eager tells: a row alone
gives in eager, by the rule, what it gives in the batch. If it does not, the model is not asked. The compiled
function is judged against eager on the row alone, so that what eager computes differently for a row is
granted; in the batch it has passed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torchrepro.execute.probes.context import Finding, ProbeContext, Trial, giving
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Subject
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.other_sizes import ways_to_cut
from torchrepro.torch_api.pytree import tree_map_only


def probe_batch(context: ProbeContext) -> Finding:
    judged = Judged()
    baseline = context.judge_baseline(context.artefact(), judged)
    if not baseline.testable or baseline.fails:
        return Finding(baseline, context.probe)
    size = _batch_of(judged.runs["eager"])
    if size is None:
        return context.not_asked("no result has a first dimension of at least two rows")
    for row_of in ways_to_cut(context.repro, size):
        rows = {number: row_of(number) for number in (0, size - 1)}
        if all(_is_independent(context, judged, row, number) for number, row in rows.items()):
            trials = [
                Trial(
                    "last" if number else "first",
                    partial(_alone, context, row),
                    f"row {number} of {size} alone",
                )
                for number, row in rows.items()
            ]
            return context.try_each(baseline, trials)
    return context.not_asked("in eager, a row alone differs from the row in the batch")


def _batch_of(run: Run) -> int | None:
    """Return the size of the first dimension of the first result that has one; None for one row or none."""
    sizes = (tensor.shape[0] for _, tensor in tensors_in(run.outputs) if tensor.dim())
    return next((size for size in sizes if size > 1), None)


def _is_independent(context: ProbeContext, judged: Judged, row: Repro, number: int) -> bool:
    """Return whether eager gives for a row alone what it gives for the row in the batch."""
    size = _batch_of(judged.runs["eager"])

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[number : number + 1] if tensor.dim() and tensor.shape[0] == size else tensor

    def results(run: Run) -> Run:
        return Run(outputs=tree_map_only(torch.Tensor, cut, run.outputs))

    def alone(around: Any) -> Run:
        return Run(outputs=eager.subject(row.inputs).eager(around).outputs)

    eager = context.artefact(row, compiles=False)
    truth = judged.runs.get("truth")
    batch = Subject(giving(results(judged.runs["eager"])), alone, _replay(truth, results))
    return not context.judge(batch).fails


def _replay(truth: Run | None, results: Any) -> Any:
    return None if truth is None else lambda draws: (results(truth), ())


def _alone(context: ProbeContext, row: Repro) -> Verdict:
    return context.judge(context.artefact(row).subject(row.inputs), steady=False)
