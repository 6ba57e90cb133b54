"""The order on repros: of two that fail in the same way, which one would a maintainer rather read?

Total, so that any two can be compared: the user's own code, which no pass can edit, then operations, then
inputs, then elements, then settings that are not torch's defaults, then the length of the text, then how
plain arguments and values are. Names do not count: the final script has its own. Equal keys mean that neither
is preferred; the first one found stays.
"""

from __future__ import annotations

from typing import NamedTuple

from torchrepro.edit.cost import asks_for_gradients, cost_of_arguments, cost_of_tensor, count_runs
from torchrepro.edit.held_tensors import all_tensors, count_elements_of
from torchrepro.edit.settings import compiler_settings
from torchrepro.engine.canonical_key import canonical_text
from torchrepro.nouns.repro import Place, Repro


class Size(NamedTuple):
    """Compared from the first field to the last."""

    code: int
    """1 for a call of the user's own code: any graph that capture makes of it is smaller."""
    ops: int
    inputs: int
    elements: int
    settings: int
    text: int
    arguments: int
    irregularity: int
    """Characters to write the values (`edit/cost.py`)."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Ops, inputs, elements: what is shown to a user."""
        return (self.ops, self.inputs, self.elements)


def size_of(repro: Repro) -> Size:
    """Return the key by which repros are ordered."""
    tensors = all_tensors(repro)
    return Size(
        code=int(repro.place is Place.BEFORE_CAPTURE),
        ops=count_runs(repro.graph),
        inputs=len(repro.inputs),
        elements=count_elements_of(tensors),
        settings=count_settings(repro),
        text=len(canonical_text(repro.graph)[0]),
        arguments=cost_of_arguments(repro.graph),
        irregularity=sum(map(cost_of_tensor, tensors)),
    )


def count_settings(repro: Repro) -> int:
    """Return how many settings differ from torch's defaults, with gradients, earlier calls and symbols."""
    ambient = repro.ambient
    around = (
        len(ambient.non_default) + len(ambient.environ) + bool(ambient.rng) + (ambient.threads is not None)
    )
    judged = repro.strict + (repro.tolerance is not None) + asks_for_gradients(repro)
    return len(compiler_settings(repro)) + around + judged + len(repro.earlier) + len(repro.symbols)
