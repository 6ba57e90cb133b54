"""The marks that `mark_dynamic` and its siblings leave on a tensor: they change what is compiled."""

from __future__ import annotations

import torch

from torchrepro.bundle.entries import DimMark


def read_marks(tensor: torch.Tensor) -> tuple[DimMark, ...]:
    """The marks on a tensor's dimensions.

    They are sets of indices in attributes; a range is an object with dim, min and max.
    Checked on torch 2.11 to 2.15.
    """
    attributes = vars(tensor) if hasattr(tensor, "__dict__") else {}
    if not any(name.startswith("_dynamo_") for name in attributes):
        return ()
    ranges = {item.dim: item for item in attributes.get("_dynamo_dynamic_range", ())}
    marks = []
    for dim in sorted(attributes.get("_dynamo_dynamic_indices", ())):
        limits = ranges.get(dim)
        marks.append(DimMark("dynamic", dim, getattr(limits, "min", None), getattr(limits, "max", None)))
    marks += [
        DimMark("maybe_dynamic", dim) for dim in sorted(attributes.get("_dynamo_weak_dynamic_indices", ()))
    ]
    marks += [DimMark("unbacked", dim) for dim in sorted(attributes.get("_dynamo_unbacked_indices", ()))]
    marks += [DimMark("static", dim) for dim in sorted(attributes.get("_dynamo_static_indices", ()))]
    return tuple(marks)


def apply_marks(tensor: torch.Tensor, marks: tuple[DimMark, ...]) -> None:
    """Mark the dimensions again, by the functions a user would call."""
    if not marks:
        return
    from torchrepro.torch_api.dynamo import (
        decorators as dynamo,  # over a second on first use, and most tensors have no marks
    )

    for mark in marks:
        match mark.mark:
            case "dynamic":
                dynamo.mark_dynamic(tensor, mark.dim, min=mark.minimum, max=mark.maximum)
            case "maybe_dynamic":
                dynamo.maybe_mark_dynamic(tensor, mark.dim)
            case "unbacked":
                dynamo.mark_unbacked(tensor, mark.dim)
            case "static":
                dynamo.mark_static(tensor, mark.dim)
