"""What a script compares: the judge's path to the value that differs, as an expression of the script."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrepro.judge.leaves import tensors_in
from torchrepro.nouns.comparison import LeafComparison
from torchrepro.script.assertions import Compared, worst_leaf
from torchrepro.script.literals import Unwritable
from torchrepro.script.plan import Manner, Plan


def result_suffix(plan: Plan) -> str:
    """What is appended to the outputs to reach the one that differs."""
    path, results = str(plan.leaf_path), plan.body.results
    best = max((known for known in results if path.startswith(known)), key=len, default=None)
    return "" if best is None else results[best] + path[len(best) :]


def observed(plan: Plan) -> str:
    """The expression of what is compared, where the outputs are called `out`."""
    where = plan.leaf_path
    end = ".grad" if where.part == "grad" else ""
    if where.input is not None:
        name = plan.body.parameters.get(plan.placeholders[where.input])
        if name is None:
            raise Unwritable("an input that the graph does not use")
        return f"{name}{where.rest}{end}"
    if where.part in ("grad", "state") and where.name and not where.rest:
        known = {place: name for name, place in plan.body.state.items()}
        return f"model.{known.get(where.name, where.name)}{end}"
    return f"out{result_suffix(plan)}"


def compared(plan: Plan) -> Compared:
    """The leaf that differs, and how it was judged."""
    leaf = worst_leaf(plan.verdict)
    if leaf is None:
        raise Unwritable(f"a verdict without a comparison ({plan.verdict.kind.value})")
    dtype = _dtype(plan)
    numbers = dtype is None or dtype.is_floating_point or dtype.is_complex
    careful = plan.manner is not Manner.PLAIN
    return Compared(
        leaf,
        dtype=dtype,
        not_numbers=numbers and (careful or may_be_nan(leaf, plan.repro.inputs)),
        strict=plan.repro.strict,
        tolerance=plan.repro.tolerance,
    )


def may_be_nan(leaf: LeafComparison, inputs: Iterable[object]) -> bool:
    """Whether NaNs may stand in both results: eager has one, or something that is not finite goes in."""
    if "nan" in f"{leaf.ref_value}{leaf.truth_value}":
        return True
    return any(
        not bool(tensor.detach().float().isfinite().all())
        for _, tensor in tensors_in(list(inputs))
        if tensor.dtype.is_floating_point and tensor.layout is torch.strided
    )


def _dtype(plan: Plan) -> torch.dtype | None:
    """Of what is compared: an input and its gradient have the same."""
    if plan.leaf_path.input is not None:
        value = plan.repro.inputs[plan.leaf_path.input]
        return value.dtype if isinstance(value, torch.Tensor) else None
    tensor = dict(tensors_in(plan.traced.output, "out")).get(str(plan.leaf_path))
    return None if tensor is None else tensor.dtype
