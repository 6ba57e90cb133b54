"""Dtypes: whether the repro fails with other ones as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from torchrepro.edit.held_tensors import made_like
from torchrepro.explain.inputs import Given, tensor_inputs, with_inputs
from torchrepro.explain.sentences import Evidence, listed, sentence_on_choices
from torchrepro.explain.variations import Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Repro

_FLOATING = (torch.float64, torch.bfloat16, torch.float16, torch.float32)
_WHOLE = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)


def propose(repro: Repro, names: Mapping[int, str] | None = None) -> list[Variation]:
    """Every group of inputs of one dtype in another dtype of its kind."""
    groups = _groups(tensor_inputs(repro, names))
    return [cast for own in groups for cast in _cast(repro, groups[own], _subject(own, groups))]


def facts(repro: Repro, trials: Sequence[Trial], names: Mapping[int, str] | None = None) -> list[Fact]:
    """What was found out about dtypes; nothing where nothing could be tried."""
    groups = _groups(tensor_inputs(repro, names))
    found: list[Fact] = []
    for own in groups:
        subject = _subject(own, groups)
        evidence = Evidence.of([t for t in trials if t.variation.subject == subject], own=_name(own))
        if evidence.tried > 1:
            words = sentence_on_choices(_name(own), evidence)
            about = "" if subject == "dtype" else f"{subject}: "
            short = f"{subject} ({listed(evidence.failing)})"
            found.append(evidence.fact(Area.DTYPES, subject, f"{about}{words}", short))
    return found


def _groups(inputs: Sequence[Given]) -> dict[torch.dtype, list[Given]]:
    """Inputs of one dtype change together: most ops ask for that."""
    groups: dict[torch.dtype, list[Given]] = {}
    for given in inputs:
        if given.tensor.dtype in (*_FLOATING, *_WHOLE):
            groups.setdefault(given.tensor.dtype, []).append(given)
    return groups


def _subject(own: torch.dtype, groups: dict[torch.dtype, list[Given]]) -> str:
    return "dtype" if len(groups) == 1 else f"dtype of {listed([given.name for given in groups[own]])}"


def _cast(repro: Repro, group: Sequence[Given], subject: str) -> Iterator[Variation]:
    own = group[0].tensor.dtype
    for dtype in _FLOATING if own.is_floating_point else _WHOLE:
        data = {given.index: given.tensor.detach().to(dtype) for given in group}
        if dtype is own or any(_lost(given.tensor, data[given.index]) for given in group):
            continue
        changed = {given.index: made_like(data[given.index], given.tensor) for given in group}
        label = _name(dtype)
        yield Variation(Area.DTYPES, subject, label, with_inputs(repro, changed), f"{label} as {subject}")


def _lost(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a cast made other numbers of them, so that more than the dtype has changed."""
    old = old.detach()
    if not old.is_floating_point():
        return not torch.equal(new.to(old.dtype), old)
    overflown = new.isfinite() != old.isfinite()
    vanished = (new == 0) != (old == 0)
    return bool(overflown.any() or vanished.any())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
