"""Vary the inputs: their values, sizes, dtypes and layouts, under the names that a reader knows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.edit.dimensions import dimension_table
from torchrepro.edit.held_tensors import count_elements, held_tensors, made_like, window
from torchrepro.edit.validity import why_invalid
from torchrepro.explain.rules import between, changes, label_of, numbers_to_try, place_of, sizes_between
from torchrepro.explain.sentences import listed, sentence_on_sizes, sentence_on_values
from torchrepro.explain.subject import (
    Evidence,
    Outcome,
    Subject,
    Trial,
    Variation,
    amounts,
    sentence_on_choices,
)
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area
from torchrepro.nouns.verdict import Verdict

Names = Mapping[int, str] | None
"""What the script calls the inputs, by number."""

_CAPTURED = re.compile(r"[lL]_(\w+?)_?")
"""Capture calls the local variable `x` `L_x_`."""
_INPUTS = 3
_AT_ONCE = 60
"""Numbers in one go. A set of inputs takes milliseconds; going twice over 20 decades leaves one per cent."""
_VALUE_ELEMENTS = 1 << 23
_SIZES = (64, 1, 17, 2, 65, 16, 8, 9, 33, 32, 31, 15, 7, 3, 4, 63)
"""Around the widths of vectors and blocks; what tells most comes first, since not all may be asked."""
_SIZE_ELEMENTS = 1 << 22
_DIMENSIONS = 4
"""Dimensions that are varied: a repro with more of them is not a minimal one."""
_REFINED = 14
_FLOATING = (torch.float64, torch.bfloat16, torch.float16, torch.float32)
_INTEGER = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor among the inputs."""

    index: int
    name: str
    tensor: torch.Tensor

    @property
    def holds_numbers(self) -> bool:
        """Whether it holds floating-point numbers or integers that can be chosen at will."""
        dtype = self.tensor.dtype
        return not dtype.is_complex and (not dtype.is_floating_point or dtype.itemsize > 1)


def input_names(repro: Repro, names: Names = None) -> list[str]:
    """Return what the inputs are called: by number as the caller says, else by the graph."""
    said = names or {}
    nodes = repro.graph.graph.find_nodes(op="placeholder")
    return [said.get(number, _readable(str(node.target))) for number, node in enumerate(nodes)]


def _readable(name: str) -> str:
    found = _CAPTURED.fullmatch(name)
    return found.group(1) if found else name


def tensor_inputs(repro: Repro, names: Names = None) -> list[Given]:
    """Return the tensors whose memory is theirs alone: what is shared cannot be changed in one place."""
    known = input_names(repro, names)
    return [
        Given(held.index, known[held.index], held.tensor)
        for held in held_tensors(repro)
        if held.index is not None and not held.shares
    ]


def with_inputs(repro: Repro, changed: Mapping[int, Any]) -> Repro:
    """Return the repro on other inputs; those that are not named stay the same objects."""
    values = (changed.get(index, value) for index, value in enumerate(repro.inputs))
    return replace(repro, inputs=tuple(values))


# Values: for which contents of which input the repro fails.


def values(repro: Repro, names: Names = None) -> list[Subject]:
    """Each input filled with one number throughout, and with patterns that no single number stands for."""
    inputs = [given for given in tensor_inputs(repro, names) if given.tensor.numel() and given.holds_numbers]
    return [_values_of(repro, given) for given in inputs[:_INPUTS]]


def _values_of(repro: Repro, given: Given) -> Subject:
    own = _constant(given.tensor)
    room = max(4, min(_AT_ONCE, _VALUE_ELEMENTS // given.tensor.numel()))  # each is a copy of the input

    def varied(data: torch.Tensor, label: str, amount: float | None = None) -> Variation:
        changed = with_inputs(repro, {given.index: made_like(data, given.tensor)})
        # A plain number says more than an infinity, and a short one more than a long one.
        step = len(label) + 100 * (amount is not None and not math.isfinite(amount))
        return subject.varied(label, changed, f"{given.name} filled with {label}", amount=amount, step=step)

    def filled(number: float) -> Variation:
        return varied(torch.full_like(given.tensor.detach(), number), label_of(number), number)

    def numbers(trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
        """The numbers that fail and those that pass, in their order; what the repro is filled with fails."""
        failing = {*amounts(trials, Outcome.FAILS), *(() if own is None else (own,))}
        return sorted(failing, key=place_of), sorted(set(amounts(trials, Outcome.PASSES)), key=place_of)

    def refine(trials: Sequence[Trial]) -> list[Variation]:
        limits = changes(*([n for n in found if math.isfinite(n)] for found in numbers(trials)))
        if len(limits) > 2:
            return []  # no limit but a pattern: more numbers would not make it plainer
        dtype = given.tensor.dtype
        return [filled(n) for low, high in limits for n in between(low, high, room // len(limits), dtype)]

    def sentence(evidence: Evidence, trials: Sequence[Trial]) -> str:
        failing, passing = numbers(trials)
        patterns = Evidence.of([trial for trial in trials if trial.variation.amount is None])
        if not failing:
            told = f"no single number throughout {given.name} fails ({len(passing)} tried)"
            return f"{told}, but {listed(patterns.failing)} does" if patterns.failing else told
        told = sentence_on_values(failing, passing, f"value of {given.name}")
        # Patterns mix numbers that fail with numbers that pass: where both exist, they add nothing.
        if not passing and patterns.passing:
            return f"{told} throughout, not {listed(patterns.passing, joined='or')}"
        return told

    subject = Subject(
        Area.VALUES,
        given.name,
        "its own values" if own is None else label_of(own),
        (),
        sentence,
        lambda evidence: f"values of {given.name} ({evidence.tried} tried)",
        refine,
    )
    tried = numbers_to_try(given.tensor.dtype)[:room]
    new = [number for number in tried if own is None or label_of(number) != label_of(own)]
    patterns = [varied(data, label) for data, label in _patterns(given.tensor.detach())]
    return subject.having([*map(filled, new), *patterns])


def _constant(tensor: torch.Tensor) -> float | None:
    """The number that a tensor is filled with."""
    flat = tensor.detach().reshape(-1)
    if not bool((flat == flat[0]).all() or (flat.isnan().all())):
        return None
    number: float = flat[0].item()
    return number


def _patterns(old: torch.Tensor) -> Iterator[tuple[torch.Tensor, str]]:
    if old.numel() < 2 or old.dtype is torch.bool:
        return
    steps = torch.arange(old.numel(), device=old.device).remainder(100).reshape(old.shape)
    yield torch.empty_like(old).copy_(steps), "arange"
    if old.dtype.is_floating_point:
        for seed in (0, 1):
            drawn = torch.randn(old.shape, generator=torch.Generator().manual_seed(seed))
            yield torch.empty_like(old).copy_(drawn), f"randn with seed {seed}"


# Sizes: for which sizes of which dimension the repro fails.

_Resize = Callable[[int], Repro | None]
"""The repro with another size; None where it would not run."""


def sizes(repro: Repro, verdict: Verdict, names: Names = None) -> list[Subject]:
    """Each dimension in other sizes, together with all that has to follow."""
    known = input_names(repro, names)
    table = dimension_table(repro, verdict)
    found = []
    for dimension in table.free:
        inputs = ((table.held[axis.held].index, axis.axis) for axis in dimension.axes)
        places = [(known[index], axis) for index, axis in inputs if index is not None]
        if places and dimension.size > 1:

            def resized(size: int, name: str = dimension.name) -> Repro | None:
                return table.resized({name: size})

            found.append(_size_of(dimension.size, places, resized))
    return [*found, *_single_sizes(repro, names)][:_DIMENSIONS]


def _single_sizes(repro: Repro, names: Names) -> list[Subject]:
    """Axes of size 1, of which the table says nothing: each alone, in a pair, or all of them together."""
    inputs = tensor_inputs(repro, names)
    axes = [(given, axis) for given in inputs for axis, size in enumerate(given.tensor.shape) if size == 1]
    found: list[Subject] = []
    taken: set[tuple[str, int]] = set()
    for one in axes:
        others = [other for other in axes if other is not one]
        groups = [(one,), *((one, other) for other in others), (one, *others)]
        for group in groups if (one[0].name, one[1]) not in taken else ():
            resized = _growing(repro, group)
            if resized(2) is not None and resized(3) is not None:
                places = [(given.name, axis) for given, axis in group]
                found.append(_size_of(1, places, resized))
                taken.update(places)
                break
    return found


def _growing(repro: Repro, axes: Sequence[tuple[Given, int]]) -> _Resize:
    def resized(size: int) -> Repro | None:
        shapes = {given.index: list(given.tensor.shape) for given, _ in axes}
        for given, axis in axes:
            shapes[given.index][axis] = size
        tensors = {given.index: given.tensor for given, _ in axes}
        grown = {index: window(tensors[index], [0] * len(shape), shape) for index, shape in shapes.items()}
        candidate = with_inputs(repro, grown)
        return None if why_invalid(candidate) else candidate

    return resized


def _size_of(own: int, places: Sequence[tuple[str, int]], resized: _Resize) -> Subject:
    """Sizes of inputs that change together, and where they stand: (input, axis)."""
    words = listed([f"dim {axis} of {name}" for name, axis in places])

    def varied(sizes: Iterable[int]) -> list[Variation]:
        """The repro with each of these sizes, as far as it runs and fits into memory."""
        found = []
        for size in sizes:
            repro = None if size == own else resized(size)
            if repro is not None and count_elements(repro) <= _SIZE_ELEMENTS:
                edit, step = f"size {size} in {words}", abs(size - own)
                found.append(subject.varied(str(size), repro, edit, amount=size, step=step))
        return found

    def tried(trials: Sequence[Trial]) -> tuple[list[int], list[int]]:
        """The sizes that fail, the repro's own among them, and those that pass."""
        failing, passing = (amounts(trials, outcome) for outcome in (Outcome.FAILS, Outcome.PASSES))
        return [own, *map(int, failing)], [*map(int, passing)]

    def refine(trials: Sequence[Trial]) -> list[Variation]:
        limits = changes(*tried(trials))
        if not 0 < len(limits) <= 2:
            return []  # no limit but a pattern: more sizes would not make it plainer
        share = _REFINED // len(limits)
        return varied(size for low, high in limits for size in sizes_between(int(low), int(high), share))

    def short(evidence: Evidence) -> str:
        failing = [int(size) for size in evidence.failing]
        return f"size of {words} ({min(failing)} to {max(failing)})"

    subject = Subject(
        Area.SIZES,
        ", ".join(f"{name}.dim {axis}" for name, axis in places),
        str(own),
        (),
        lambda evidence, trials: sentence_on_sizes(*tried(trials), f"in {words}"),
        short,
        refine,
    )
    # One more, one less, then from far apart to close together.
    wanted = (own + 1, own - 1, *_SIZES, *((2 * own,) if own >= max(_SIZES) else ()))
    return subject.having(varied(size for size in dict.fromkeys(wanted) if size > 0))


# Dtypes: whether the repro fails with other ones as well.


def dtypes(repro: Repro, names: Names = None) -> list[Subject]:
    """Every group of inputs of one dtype in another dtype of its kind: most ops ask for equal dtypes."""
    groups: dict[torch.dtype, list[Given]] = {}
    for given in tensor_inputs(repro, names):
        if given.tensor.dtype in (*_FLOATING, *_INTEGER):
            groups.setdefault(given.tensor.dtype, []).append(given)
    found = []
    for own, group in groups.items():
        name = "dtype" if len(groups) == 1 else f"dtype of {listed([given.name for given in group])}"
        found.append(_dtype_of(repro, own, group, name))
    return found


def _dtype_of(repro: Repro, own: torch.dtype, group: Sequence[Given], name: str) -> Subject:
    about = "" if name == "dtype" else f"{name}: "
    label = _dtype_name(own)
    subject = Subject(
        Area.DTYPES,
        name,
        label,
        (),
        lambda evidence, trials: about + sentence_on_choices(label, evidence),
        lambda evidence: f"{name} ({listed(evidence.failing)})",
    )
    found = []
    for dtype in _FLOATING if own.is_floating_point else _INTEGER:
        data = {given.index: given.tensor.detach().to(dtype) for given in group}
        if dtype is not own and not any(_lost(given.tensor, data[given.index]) for given in group):
            changed = {given.index: made_like(data[given.index], given.tensor) for given in group}
            other = _dtype_name(dtype)
            found.append(subject.varied(other, with_inputs(repro, changed), f"{other} as {name}"))
    return subject.having(found)


def _lost(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a cast made other numbers of them, so that more than the dtype has changed."""
    old = old.detach()
    if not old.is_floating_point():
        return not torch.equal(new.to(old.dtype), old)
    overflown = new.isfinite() != old.isfinite()
    vanished = (new == 0) != (old == 0)
    return bool(overflown.any() or vanished.any())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Layouts: whether it matters how the inputs lie in memory, or that they are no plain tensors.


def layouts(repro: Repro, names: Names = None) -> list[Subject]:
    """Inputs with memory of their own, made plain where they are not, and turned round in memory."""
    turned = [_turned(repro, given) for given in tensor_inputs(repro, names)]
    return [*_apart(repro, names), *_plain(repro, names), *(one for one in turned if one is not None)]


def _turned(repro: Repro, given: Given) -> Subject | None:
    """The same values in another order in memory; None where the order cannot be told."""
    old = given.tensor.detach()
    if sum(size > 1 for size in old.shape) > 1 and old.is_contiguous():
        reverse = tuple(reversed(range(old.dim())))
        data = old.permute(reverse).contiguous().permute(reverse)
        return _layout_of(repro, given, data, "contiguous", "transposed")
    if old.is_contiguous():
        return None
    return _layout_of(repro, given, old.contiguous(), "not contiguous", "contiguous")


def _plain(repro: Repro, names: Names) -> Iterator[Subject]:
    """Views that are computed on reading, and tensors of zeros without memory, as plain tensors."""
    for index, (name, value) in enumerate(zip(input_names(repro, names), repro.inputs, strict=False)):
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized:
            continue
        # Checked on torch 2.11 to 2.15 (`_is_zerotensor`).
        conjugate = "a conjugate view" if value.is_conj() else "a negative view" if value.is_neg() else ""
        what = "a ZeroTensor" if value._is_zerotensor() else conjugate
        if what:
            data = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())
            yield _layout_of(repro, Given(index, name, value), data, what, "a plain tensor")


def _apart(repro: Repro, names: Names) -> Iterator[Subject]:
    """Inputs that look at one memory, each with a memory of its own."""
    known = input_names(repro, names)
    shared = {held.index: held.tensor for held in held_tensors(repro) if held.shares}
    inputs = {index: tensor for index, tensor in shared.items() if index is not None}
    if len(inputs) > 1:
        changed = {
            index: made_like(tensor.detach().clone(memory_format=torch.preserve_format), tensor)
            for index, tensor in inputs.items()
        }
        who = listed([known[index] for index in inputs])
        edit = f"{who} in memory of their own"
        yield _layout(
            f"memory of {who}", f"the memory of {who}", "shared", "apart", with_inputs(repro, changed), edit
        )


def _layout_of(repro: Repro, given: Given, data: torch.Tensor, own: str, other: str) -> Subject:
    changed = with_inputs(repro, {given.index: made_like(data, given.tensor)})
    return _layout(f"layout of {given.name}", given.name, own, other, changed, f"{given.name} {other}")


def _layout(name: str, who: str, own: str, other: str, changed: Repro, edit: str) -> Subject:
    def sentence(evidence: Evidence, trials: Sequence[Trial]) -> str:
        if evidence.passing:
            return f"only if {who} is {own}"
        return f"{who} {sentence_on_choices(own, evidence)}"

    subject = Subject(Area.LAYOUTS, name, own, (), sentence)
    return subject.having([subject.varied(other, changed, edit)])
