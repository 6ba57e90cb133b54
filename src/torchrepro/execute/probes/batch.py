"""A row alone against the row in its batch: both are as close to the truth as eager is.

The batch is the first dimension of the first result. Whether rows are independent, eager tells: a row alone
gives in eager, by the rule, what it gives in the batch. If it does not, the model is not asked. The compiled
function is judged against eager on the row alone, so that what eager computes differently for a row is
granted; in the batch it has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchrepro.execute.probes.context import Finding, ProbeContext, Trial, giving
from torchrepro.graph_text.annotations import TensorNote
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Subject
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.other_sizes import known_sizes, notes_of_inputs, of_sizes, symbols_in
from torchrepro.torch_api.pytree import tree_map_only

Row = Callable[[int], Repro]
"""Returns the repro of one row of the batch, by its number."""


def probe_batch(context: ProbeContext) -> Finding:
    judged = Judged()
    baseline = context.judge_baseline(context.artefact(), judged)
    if not baseline.testable or baseline.fails:
        return Finding(baseline, context.probe)
    size = _batch_of(judged.runs["eager"])
    if size is None:
        return context.not_asked("no result has a first dimension of at least two rows")
    repro = context.repro
    ways = _by_symbol(repro, size) if repro.symbols else _by_size(repro, size)
    for row_of in ways:
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


def _by_size(repro: Repro, size: int) -> Iterator[Row]:
    """Yield ways to cut: in all inputs of that many rows but parameters, in those too, in the first alone."""
    fitting = [
        index
        for index, value in enumerate(repro.inputs)
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size
    ]
    data = [index for index in fitting if not isinstance(repro.inputs[index], torch.nn.Parameter)]
    for batched in dict.fromkeys(frozenset(each) for each in (data, fitting, data[:1]) if each):
        yield partial(_with_row, repro, batched)


def _with_row(repro: Repro, batched: frozenset[int], number: int) -> Repro:
    cut = (_cut(value, number) if index in batched else value for index, value in enumerate(repro.inputs))
    return replace(repro, inputs=tuple(cut))


def _cut(value: torch.Tensor, number: int) -> torch.Tensor:
    return value.detach()[number : number + 1].clone().requires_grad_(value.requires_grad)


def _by_symbol(repro: Repro, size: int) -> Iterator[Row]:
    """Yield a way to cut for each symbol that is the number of rows wherever it occurs in a tensor."""
    known = known_sizes(repro)
    notes = notes_of_inputs(repro)
    for name in (name for name, value in known.items() if value == size):
        shapes = [note.shape for note in notes if isinstance(note, TensorNote)]
        elsewhere = [text for shape in shapes for text in shape[1:] if name in symbols_in(text)]
        first = [shape[0] for shape in shapes if shape and name in symbols_in(shape[0])]
        if first and not elsewhere and all(text == name for text in first):
            yield partial(_with_row_of_symbol, repro, name)


def _with_row_of_symbol(repro: Repro, name: str, number: int) -> Repro:
    """Return the repro of a row; it is captured again, because its sizes are symbols for more rows alone."""
    sizes = {**known_sizes(repro), name: 1}
    inputs = [
        _cut(value, number)
        if isinstance(note, TensorNote) and note.shape and note.shape[0] == name
        else of_sizes(note, value, sizes)
        for note, value in zip(notes_of_inputs(repro), repro.inputs, strict=False)
    ]
    compiler = replace(repro.compiler, recapture=True, dynamic=False)
    return replace(repro, inputs=tuple(inputs), symbols=(), compiler=compiler)


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
