"""Values: for which contents of which input the repro fails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from torchrepro.edit.held_tensors import made_like
from torchrepro.explain.inputs import Given, tensor_inputs, with_inputs
from torchrepro.explain.numbers import between, label_of, numbers_to_try, place_of
from torchrepro.explain.rules import changes
from torchrepro.explain.sentences import Evidence, listed, sentence_on_values
from torchrepro.explain.variations import Outcome, Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Repro

_INPUTS = 3
_AT_ONCE = 60
"""Numbers in one go. A set of inputs takes milliseconds; going twice over 20 decades leaves one per cent."""
_ELEMENTS = 1 << 23


def varied_inputs(repro: Repro, names: Mapping[int, str] | None = None) -> list[Given]:
    """The inputs whose values are varied."""
    inputs = [given for given in tensor_inputs(repro, names) if given.tensor.numel() and given.holds_numbers]
    return inputs[:_INPUTS]


def propose(repro: Repro, given: Given) -> list[Variation]:
    """The input filled with one number throughout, and with patterns that no single number stands for."""
    own = _constant(given.tensor)
    tried = numbers_to_try(given.tensor.dtype)[: _room(given)]
    numbers = [number for number in tried if own is None or label_of(number) != label_of(own)]
    return [*(_filled(repro, given, number) for number in numbers), *_patterns(repro, given)]


def refine(repro: Repro, given: Given, trials: Sequence[Trial]) -> list[Variation]:
    """Numbers between one that fails and one that passes, where there is a limit to be found."""
    failing, passing = _numbers(given, trials)
    limits = changes([n for n in failing if math.isfinite(n)], [n for n in passing if math.isfinite(n)])
    if len(limits) > 2:
        return []  # no limit but a pattern: more numbers would not make it plainer
    return [
        _filled(repro, given, number)
        for low, high in limits
        for number in between(low, high, _room(given) // len(limits), given.tensor.dtype)
    ]


def _room(given: Given) -> int:
    """How many numbers are tried in one go: fewer of a large input, of which each is a copy."""
    return max(4, min(_AT_ONCE, _ELEMENTS // given.tensor.numel()))


def facts(given: Given, trials: Sequence[Trial]) -> list[Fact]:
    """What was found out about an input's values; nothing if nothing could be tried."""
    own = [trial for trial in trials if trial.variation.subject == given.name]
    ordered = sorted(own, key=lambda trial: place_of(_amount(trial)))
    constant = _constant(given.tensor)
    evidence = Evidence.of(ordered, own="its own values" if constant is None else label_of(constant))
    if evidence.tried < 2:
        return []
    sentence = _sentence(given, own, *_numbers(given, own))
    short = f"values of {given.name} ({evidence.tried} tried)"
    return [evidence.fact(Area.VALUES, given.name, sentence, short)]


def _sentence(given: Given, trials: Sequence[Trial], failing: list[float], passing: list[float]) -> str:
    patterns = Evidence.of([trial for trial in trials if trial.variation.amount is None])
    if not failing:
        told = f"no single number throughout {given.name} fails ({len(passing)} tried)"
        return f"{told}, but {listed(patterns.failing)} does" if patterns.failing else told
    sentence = sentence_on_values(failing, passing, f"value of {given.name}")
    # Patterns mix numbers that fail with numbers that pass: where both exist, they add nothing.
    if not passing and patterns.passing:
        return f"{sentence} throughout, not {listed(patterns.passing, joined='or')}"
    return sentence


def _numbers(given: Given, trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
    """The numbers that fail and those that pass, in their order; what the repro is filled with fails."""

    def numbers(outcome: Outcome) -> set[float]:
        found = (
            trial for trial in trials if trial.outcome is outcome and trial.variation.subject == given.name
        )
        return {_amount(trial) for trial in found if trial.variation.amount is not None}

    own = _constant(given.tensor)
    failing = numbers(Outcome.FAILS) | ({own} if own is not None else set())
    return sorted(failing, key=place_of), sorted(numbers(Outcome.PASSES), key=place_of)


def _amount(trial: Trial) -> float:
    return math.nan if trial.variation.amount is None else trial.variation.amount


def _constant(tensor: torch.Tensor) -> float | None:
    """The number that a tensor is filled with."""
    flat = tensor.detach().reshape(-1)
    if not bool((flat == flat[0]).all() or (flat.isnan().all())):
        return None
    number: float = flat[0].item()
    return number


def _filled(repro: Repro, given: Given, number: float) -> Variation:
    data = torch.full_like(given.tensor.detach(), number)
    return _variation(repro, given, data, label_of(number), number)


def _patterns(repro: Repro, given: Given) -> Iterator[Variation]:
    old = given.tensor.detach()
    if old.numel() < 2 or old.dtype is torch.bool:
        return
    steps = torch.arange(old.numel(), device=old.device).remainder(100).reshape(old.shape)
    yield _variation(repro, given, torch.empty_like(old).copy_(steps), "arange")
    if old.dtype.is_floating_point:
        for seed in (0, 1):
            drawn = torch.randn(old.shape, generator=torch.Generator().manual_seed(seed))
            yield _variation(repro, given, torch.empty_like(old).copy_(drawn), f"randn with seed {seed}")


def _variation(
    repro: Repro, given: Given, data: torch.Tensor, label: str, amount: float | None = None
) -> Variation:
    changed = with_inputs(repro, {given.index: made_like(data, given.tensor)})
    # A plain number says more than an infinity, and a short one more than a long one.
    step = len(label) + 100 * (amount is not None and not math.isfinite(amount))
    edit = f"{given.name} filled with {label}"
    return Variation(Area.VALUES, given.name, label, changed, edit, amount, step)
