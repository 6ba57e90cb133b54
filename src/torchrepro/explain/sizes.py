"""Sizes: for which sizes of which dimension the repro fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchrepro.edit.coupling import dimension_table
from torchrepro.edit.dimensions import DimensionTable
from torchrepro.edit.held_tensors import count_elements, window
from torchrepro.edit.validity import why_invalid
from torchrepro.explain.inputs import Given, input_names, tensor_inputs, with_inputs
from torchrepro.explain.rules import changes, sizes_between
from torchrepro.explain.sentences import Evidence, listed, sentence_on_sizes
from torchrepro.explain.variations import Outcome, Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Verdict

# Around the widths of vectors and blocks; what tells most comes first, since not all may be asked.
_LADDER = (64, 1, 17, 2, 65, 16, 8, 9, 33, 32, 31, 15, 7, 3, 4, 63)
_ELEMENTS = 1 << 22
_VARIED = 4
"""Dimensions that are varied: a repro with more of them is not a minimal one."""
_REFINED = 14


@dataclass(frozen=True, eq=False)
class Extent:
    """Sizes of inputs that change together, and where they stand: (input, axis)."""

    own: int
    places: tuple[tuple[str, int], ...]
    resized: Callable[[int], Repro | None]
    """The repro with another size; None where it would not run."""

    @property
    def subject(self) -> str:
        return ", ".join(f"{name}.dim {axis}" for name, axis in self.places)

    @property
    def words(self) -> str:
        """`dim 1 of x`, `dim 1 of x and dim 0 of y`."""
        return listed([f"dim {axis} of {name}" for name, axis in self.places])

    def varied(self, sizes: Iterable[int]) -> list[Variation]:
        """The repro with each of these sizes, as far as it runs and fits into memory."""
        found = []
        for size in sizes:
            repro = None if size == self.own else self.resized(size)
            if repro is not None and count_elements(repro) <= _ELEMENTS:
                found.append(
                    Variation(
                        Area.SIZES,
                        self.subject,
                        str(size),
                        repro,
                        f"size {size} in {self.words}",
                        amount=size,
                        step=abs(size - self.own),
                    )
                )
        return found


def extents(repro: Repro, verdict: Verdict, names: Mapping[int, str] | None = None) -> list[Extent]:
    """What can be given another size, together with all that has to follow."""
    if repro.place is Place.BEFORE_CAPTURE:
        return []
    known = input_names(repro, names)
    table = dimension_table(repro, verdict)
    found = []
    for dimension in table.free:
        inputs = ((table.held[axis.held].index, axis.axis) for axis in dimension.axes)
        places = tuple((known[index], axis) for index, axis in inputs if index is not None)
        if places and dimension.size > 1:
            found.append(Extent(dimension.size, places, _resizing(table, dimension.name)))
    return [*found, *_single(repro, names)][:_VARIED]


def _resizing(table: DimensionTable, name: str) -> Callable[[int], Repro | None]:
    return lambda size: table.resized({name: size})


def _single(repro: Repro, names: Mapping[int, str] | None) -> list[Extent]:
    """Axes of size 1, of which the table says nothing: each alone, in a pair, or all of them together."""
    inputs = tensor_inputs(repro, names)
    axes = [(given, axis) for given in inputs for axis, size in enumerate(given.tensor.shape) if size == 1]
    found: list[Extent] = []
    taken: set[tuple[str, int]] = set()
    for one in axes:
        others = [other for other in axes if other is not one]
        groups = [(one,), *((one, other) for other in others), (one, *others)]
        for group in groups if (one[0].name, one[1]) not in taken else ():
            extent = Extent(1, tuple((given.name, axis) for given, axis in group), _growing(repro, group))
            if extent.resized(2) is not None and extent.resized(3) is not None:
                found.append(extent)
                taken.update(extent.places)
                break
    return found


def _growing(repro: Repro, axes: Sequence[tuple[Given, int]]) -> Callable[[int], Repro | None]:
    def resized(size: int) -> Repro | None:
        shapes = {given.index: list(given.tensor.shape) for given, _ in axes}
        for given, axis in axes:
            shapes[given.index][axis] = size
        tensors = {given.index: given.tensor for given, _ in axes}
        grown = {index: window(tensors[index], [0] * len(shape), shape) for index, shape in shapes.items()}
        candidate = with_inputs(repro, grown)
        return None if why_invalid(candidate) else candidate

    return resized


def propose(extent: Extent) -> list[Variation]:
    """The sizes to try first: one more, one less, then from far apart to close together."""
    own = extent.own
    wanted = (own + 1, own - 1, *_LADDER, *((2 * own,) if own >= max(_LADDER) else ()))
    return extent.varied(size for size in dict.fromkeys(wanted) if size > 0)


def refine(extent: Extent, trials: Sequence[Trial]) -> list[Variation]:
    """Sizes between one that fails and one that passes, where there is a limit to be found."""
    limits = changes(*_sizes(extent, trials))
    if not 0 < len(limits) <= 2:
        return []  # no limit but a pattern: more sizes would not make it plainer
    share = _REFINED // len(limits)
    return extent.varied(size for low, high in limits for size in sizes_between(int(low), int(high), share))


def facts(extent: Extent, trials: Sequence[Trial]) -> list[Fact]:
    """What was found out about a dimension; nothing if nothing could be tried."""
    failing, passing = _sizes(extent, trials)
    if len(failing) + len(passing) < 2:
        return []
    own = [trial for trial in trials if trial.variation.subject == extent.subject]
    own.sort(key=lambda trial: trial.variation.amount or 0)
    sentence = sentence_on_sizes(failing, passing, f"in {extent.words}")
    short = f"size of {extent.words} ({min(failing)} to {max(failing)})"
    return [Evidence.of(own, own=str(extent.own)).fact(Area.SIZES, extent.subject, sentence, short)]


def _sizes(extent: Extent, trials: Sequence[Trial]) -> tuple[list[int], list[int]]:
    """The sizes that fail, the repro's own among them, and those that pass."""

    def sizes(outcome: Outcome) -> list[int]:
        return [
            int(trial.variation.amount or 0)
            for trial in trials
            if trial.outcome is outcome and trial.variation.subject == extent.subject
        ]

    return [extent.own, *sizes(Outcome.FAILS)], sizes(Outcome.PASSES)
