"""Layouts: whether it matters how the inputs lie in memory, or that they are no plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from torchrepro.edit.held_tensors import held_tensors, made_like
from torchrepro.explain.inputs import Given, input_names, tensor_inputs, with_inputs
from torchrepro.explain.sentences import Evidence, listed, sentence_on_choices
from torchrepro.explain.variations import Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Repro


@dataclass(frozen=True, eq=False)
class Layout:
    """Another layout of the same values, beside the one that the repro has."""

    variation: Variation
    who: str
    own: str

    def fact(self, trials: Sequence[Trial]) -> Fact | None:
        """What was found out; None if it could not be tried."""
        evidence = Evidence.of([trial for trial in trials if trial.variation is self.variation], own=self.own)
        if evidence.tried < 2:
            return None
        if evidence.passing:
            sentence = f"only if {self.who} is {self.own}"
        else:
            sentence = f"{self.who} {sentence_on_choices(self.own, evidence)}"
        return evidence.fact(Area.LAYOUTS, self.variation.subject, sentence, self.variation.subject)


def layouts(repro: Repro, names: Mapping[int, str] | None = None) -> list[Layout]:
    """Every input turned round in memory, or made plain where it is not."""
    turned = (layout for given in tensor_inputs(repro, names) for layout in _turned(repro, given))
    return [*_apart(repro, names), *_plain(repro, names), *turned]


def _turned(repro: Repro, given: Given) -> Iterator[Layout]:
    """The same values in another order in memory; nothing where the order cannot be told."""
    old = given.tensor.detach()
    if sum(size > 1 for size in old.shape) > 1 and old.is_contiguous():
        reverse = tuple(reversed(range(old.dim())))
        data = old.permute(reverse).contiguous().permute(reverse)
        yield _layout(repro, given, data, "contiguous", "transposed")
    elif not old.is_contiguous():
        yield _layout(repro, given, old.contiguous(), "not contiguous", "contiguous")


def _plain(repro: Repro, names: Mapping[int, str] | None) -> Iterator[Layout]:
    """Views that are computed on reading, and tensors of zeros without memory, as plain tensors."""
    for index, (name, value) in enumerate(zip(input_names(repro, names), repro.inputs, strict=False)):
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized:
            continue
        what = _special(value)
        if what:
            data = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())
            yield _layout(repro, Given(index, name, value), data, what, "a plain tensor")


def _special(value: torch.Tensor) -> str:
    """What a tensor is that is more than its memory. Checked on torch 2.11 to 2.15 (`_is_zerotensor`)."""
    if value._is_zerotensor():
        return "a ZeroTensor"
    return "a conjugate view" if value.is_conj() else "a negative view" if value.is_neg() else ""


def _apart(repro: Repro, names: Mapping[int, str] | None) -> Iterator[Layout]:
    """Inputs that look at one memory, each with a memory of its own."""
    known = input_names(repro, names)
    shared = {held.index: held.tensor for held in held_tensors(repro) if held.shares}
    inputs = {index: tensor for index, tensor in shared.items() if index is not None}
    if len(inputs) < 2:
        return
    changed = {
        index: made_like(tensor.detach().clone(memory_format=torch.preserve_format), tensor)
        for index, tensor in inputs.items()
    }
    who = listed([known[index] for index in inputs])
    variation = Variation(
        Area.LAYOUTS,
        f"memory of {who}",
        "apart",
        with_inputs(repro, changed),
        f"{who} in memory of their own",
    )
    yield Layout(variation, f"the memory of {who}", "shared")


def _layout(repro: Repro, given: Given, data: torch.Tensor, own: str, other: str) -> Layout:
    changed = with_inputs(repro, {given.index: made_like(data, given.tensor)})
    subject = f"layout of {given.name}"
    return Layout(Variation(Area.LAYOUTS, subject, other, changed, f"{given.name} {other}"), given.name, own)
