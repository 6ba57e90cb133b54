"""Vary the inputs: their values, sizes, dtypes and layouts, under their names in the script."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from torchrepro.edit.dimensions import dimension_table, windows
from torchrepro.edit.held_tensors import Held, count_elements, held_tensors, made_like, with_tensors
from torchrepro.edit.symbolic_sizes import Axis
from torchrepro.edit.validity import why_invalid
from torchrepro.explain.rules import (
    between,
    label_of,
    listed,
    numbers_to_try,
    sentence_on_sizes,
    sentence_on_values,
    sizes_between,
)
from torchrepro.explain.subject import Evidence, Subject, refining, sentence_on_choices, switch
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area
from torchrepro.nouns.verdict import Verdict
from torchrepro.torch_api.tensors import is_zero_tensor

Names = Sequence[str]
"""The names of the inputs in the script."""

_CAPTURED = re.compile(r"[lL]_(\w+?)_?")
"""Capture names the local variable `x` `L_x_`."""
_INPUTS = 3
_AT_ONCE = 60
"""Numbers per round. A set of inputs takes milliseconds; two rounds over 20 decades reach 1 %."""
_VALUE_ELEMENTS = 1 << 23
_SIZES = (64, 1, 17, 2, 65, 16, 8, 9, 33, 32, 31, 15, 7, 3, 4, 63)
"""Around the widths of vectors and blocks; the most informative first, since not all may be tried."""
_SIZE_ELEMENTS = 1 << 22
_DIMENSIONS = 4
"""How many dimensions are varied: a repro with more of them is not minimal."""
_REFINED = 14
_FLOATING = (torch.float64, torch.bfloat16, torch.float16, torch.float32)
_INTEGER = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)


def input_names(repro: Repro, said: Mapping[int, str] | None) -> Names:
    """Return the names of the inputs: those in `said`, by number, else those of the graph."""
    graph = [str(node.target) for node in repro.graph.graph.find_nodes(op="placeholder")]
    plain = [found.group(1) if (found := _CAPTURED.fullmatch(name)) else name for name in graph]
    return [(said or {}).get(number, name) for number, name in enumerate(plain)]


def tensor_inputs(repro: Repro) -> dict[int, Held]:
    """Return the inputs that share no memory: shared memory cannot be changed for one of them."""
    held = held_tensors(repro)
    return {each.index: each for each in held if each.index is not None and not each.shares}


# Values: for which contents of which input the repro fails.


def values(repro: Repro, names: Names) -> list[Subject]:
    """Return the inputs' values as subjects: each filled with one number, and with patterns (`arange`)."""
    inputs = []
    for index, held in tensor_inputs(repro).items():
        dtype = held.tensor.dtype
        # 8-bit floats and complex numbers are not varied.
        exotic = dtype.is_complex or (dtype.is_floating_point and dtype.itemsize == 1)
        if held.tensor.numel() and not exotic:
            inputs.append((held, names[index]))
    return [_values_of(repro, held, name) for held, name in inputs[:_INPUTS]]


def _values_of(repro: Repro, held: Held, name: str) -> Subject:
    old, dtype = held.tensor.detach(), held.tensor.dtype
    flat = old.reshape(-1)
    own: float | None = flat[0].item() if bool((flat == flat[0]).all() or flat.isnan().all()) else None
    room = max(4, min(_AT_ONCE, _VALUE_ELEMENTS // old.numel()))  # each is a copy of the input

    def vary(data: torch.Tensor, label: str, amount: float | None = None) -> None:
        changed = with_tensors(repro, {held: made_like(data, held.tensor)})
        # Finite numbers are better neighbours than infinities, short ones better than long ones.
        step = len(label) + 100 * (amount is not None and not math.isfinite(amount))
        subject.add(label, changed, f"{name} filled with {label}", amount=amount, step=step)

    def fill(number: float) -> None:
        vary(torch.full_like(old, number), label_of(number), number)

    def sentence(evidence: Evidence) -> str:
        failing, passing = evidence.numbers(own)
        patterns = Evidence.of([trial for trial in evidence.trials if trial.variation.amount is None])
        if not failing:
            told = f"no single number throughout {name} fails ({len(passing)} tried)"
            return f"{told}, but {listed(patterns.failing)} does" if patterns.failing else told
        told = sentence_on_values(failing, passing, f"value of {name}")
        # Patterns mix numbers that fail with numbers that pass: where both exist, they add nothing.
        if not passing and patterns.passing:
            return f"{told} throughout, not {listed(patterns.passing, joined='or')}"
        return told

    subject = Subject(
        Area.VALUES,
        name,
        "its own values" if own is None else label_of(own),
        sentence,
        lambda evidence: f"values of {name} ({len(evidence.failing) + len(evidence.passing)} tried)",
        refining(own, fill, partial(between, dtype=dtype), room),
        inputs=_numbers_of([held]),
        amount=own,
    )
    for number in numbers_to_try(dtype)[:room]:
        if own is None or label_of(number) != label_of(own):
            fill(number)
    for data, label in _patterns(old):
        vary(data, label)
    return subject


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


def sizes(repro: Repro, verdict: Verdict, names: Names) -> list[Subject]:
    """Return the dimensions as subjects: each in other sizes, with the sizes that follow from it."""
    table = dimension_table(repro, verdict)
    found = []
    for each in table.free:
        inputs = [(table.held[axis.held].index, axis.axis) for axis in each.axes]
        places = [(names[index], axis) for index, axis in inputs if index is not None]
        if places and each.size > 1:
            resized = partial(lambda name, size: table.resized({name: size}), each.name)
            numbers = tuple(index for index, _ in inputs if index is not None)
            found.append(_size_of(each.size, places, resized, numbers))
    return [*found, *_single_sizes(repro, names)][:_DIMENSIONS]


def _single_sizes(repro: Repro, names: Names) -> Iterator[Subject]:
    """Yield axes of size 1, which are not in the table: each alone, in a pair, or all of them together."""
    held = list(tensor_inputs(repro).values())
    shapes = [each.tensor.shape for each in held]
    axes = [Axis(n, axis) for n, shape in enumerate(shapes) for axis, size in enumerate(shape) if size == 1]
    taken: set[Axis] = set()

    def resized(group: Sequence[Axis], size: int) -> Repro | None:
        candidate = with_tensors(repro, windows(held, dict.fromkeys(group, (0, size))))
        return None if why_invalid(candidate) else candidate

    for one in axes:
        others = [other for other in axes if other != one]
        groups = [(one,), *((one, other) for other in others), (one, *others)]
        for group in groups if one not in taken else ():
            if resized(group, 2) is not None and resized(group, 3) is not None:
                places = [(names[held[axis.held].index or 0], axis.axis) for axis in group]
                numbers = _numbers_of([held[axis.held] for axis in group])
                yield _size_of(1, places, partial(resized, group), numbers)
                taken.update(group)
                break


def _numbers_of(held: Sequence[Held]) -> tuple[int, ...]:
    return tuple(each.index for each in held if each.index is not None)


def _size_of(
    own: int,
    places: Sequence[tuple[str, int]],
    resized: Callable[[int], Repro | None],
    inputs: tuple[int, ...],
) -> Subject:
    """Return the subject of sizes that change together, at these places: (input, axis).

    `resized` returns the repro with another size; None where it would not run.
    """
    words = listed([f"dim {axis} of {name}" for name, axis in places])

    def vary(number: float) -> None:
        """Add a variation with this size, if it runs and is not too large."""
        size = int(number)
        repro = None if size == own else resized(size)
        if repro is not None and count_elements(repro) <= _SIZE_ELEMENTS:
            step = abs(size - own)
            subject.add(str(size), repro, f"size {size} in {words}", amount=size, step=step)

    def sentence(evidence: Evidence) -> str:
        failing, passing = ([int(size) for size in found] for found in evidence.numbers(own))
        return sentence_on_sizes(failing, passing, f"in {words}")

    def short(evidence: Evidence) -> str:
        failing = [int(size) for size in evidence.failing]
        return f"size of {words} ({min(failing)} to {max(failing)})"

    def new(low: float, high: float, count: int) -> Sequence[float]:
        return sizes_between(int(low), int(high), count)

    name = ", ".join(f"{name}.dim {axis}" for name, axis in places)
    refine = refining(own, vary, new, _REFINED)
    subject = Subject(Area.SIZES, name, str(own), sentence, short, refine, inputs=inputs, amount=own)
    # First one more and one less, then the fixed sizes.
    wanted = (own + 1, own - 1, *_SIZES, *((2 * own,) if own >= max(_SIZES) else ()))
    for size in dict.fromkeys(size for size in wanted if size > 0):
        vary(size)
    return subject


# Dtypes: whether the repro fails with others as well.


def dtypes(repro: Repro, names: Names) -> list[Subject]:
    """Return a subject per group of inputs of one dtype: most ops require equal dtypes."""
    groups: dict[torch.dtype, list[Held]] = {}
    for held in tensor_inputs(repro).values():
        if held.tensor.dtype in (*_FLOATING, *_INTEGER):
            groups.setdefault(held.tensor.dtype, []).append(held)
    found = []
    for own, group in groups.items():
        who = listed([names[held.index or 0] for held in group])
        found.append(_dtype_of(repro, own, group, "dtype" if len(groups) == 1 else f"dtype of {who}"))
    return found


def _dtype_of(repro: Repro, own: torch.dtype, group: Sequence[Held], name: str) -> Subject:
    about = "" if name == "dtype" else f"{name}: "
    label = str(own).removeprefix("torch.")
    subject = Subject(
        Area.DTYPES,
        name,
        label,
        lambda evidence: about + sentence_on_choices(label, evidence),
        lambda evidence: f"{name} ({listed(evidence.failing)})",
        inputs=_numbers_of(group),
    )
    for dtype in _FLOATING if own.is_floating_point else _INTEGER:
        data = {held: held.tensor.detach().to(dtype) for held in group}
        if dtype is not own and not any(_lost(held.tensor.detach(), new) for held, new in data.items()):
            other = str(dtype).removeprefix("torch.")
            changed = {held: made_like(new, held.tensor) for held, new in data.items()}
            subject.add(other, with_tensors(repro, changed), f"{other} as {name}")
    return subject


def _lost(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Return whether a cast changed values, so that more than the dtype differs."""
    if not old.is_floating_point():
        return not torch.equal(new.to(old.dtype), old)
    overflown, vanished = new.isfinite() != old.isfinite(), (new == 0) != (old == 0)
    return bool(overflown.any() or vanished.any())


# Layouts: whether strides and shared memory of the inputs matter, or that they are not plain tensors.


def layouts(repro: Repro, names: Names) -> Iterator[Subject]:
    """Yield the subjects of layouts: inputs in separate memory, as plain tensors, with other strides."""
    shared = [held for held in held_tensors(repro) if held.shares and held.index is not None]
    if len(shared) > 1:
        who = listed([names[held.index or 0] for held in shared])
        changed = {
            held: made_like(held.tensor.detach().clone(memory_format=torch.preserve_format), held.tensor)
            for held in shared
        }
        edit, apart = f"{who} in memory of their own", with_tensors(repro, changed)
        memory = _layout(f"memory of {who}", f"the memory of {who}", "shared", "apart", apart, edit)
        memory.inputs = _numbers_of(shared)
        yield memory
    for held, data, own, other in (*_made_plain(repro), *_turned(repro)):
        who = names[held.index or 0]
        other_repro = with_tensors(repro, {held: made_like(data, held.tensor)})
        subject = _layout(f"layout of {who}", who, own, other, other_repro, f"{who} {other}")
        subject.inputs = _numbers_of([held])
        yield subject


def _made_plain(repro: Repro) -> Iterator[tuple[Held, torch.Tensor, str, str]]:
    """Yield conjugate and negative views, and zero tensors without memory, as plain tensors."""
    for index, value in enumerate(repro.inputs):
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
            view = "a conjugate view" if value.is_conj() else "a negative view" if value.is_neg() else ""
            what = "a ZeroTensor" if is_zero_tensor(value) else view
            if what:
                data = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())
                yield Held(value, ((0, index),)), data, what, "a plain tensor"


def _turned(repro: Repro) -> Iterator[tuple[Held, torch.Tensor, str, str]]:
    """Yield inputs with the same values and other strides: contiguous, or transposed if they already are."""
    for held in tensor_inputs(repro).values():
        old = held.tensor.detach()
        if not old.is_contiguous():
            yield held, old.contiguous(), "not contiguous", "contiguous"
        elif sum(size > 1 for size in old.shape) > 1:
            reverse = tuple(reversed(range(old.dim())))
            yield held, old.permute(reverse).contiguous().permute(reverse), "contiguous", "transposed"


def _layout(name: str, who: str, own: str, other: str, changed: Repro, edit: str) -> Subject:
    alike, matters = f"{who} {own} and {other} alike", f"only if {who} is {own}"
    return switch(Area.LAYOUTS, name, own, other, changed, edit=edit, alike=alike, matters=matters)
