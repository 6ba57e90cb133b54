"""The order on repros: of two that fail in the same way, which one would a maintainer rather read?

Total, so that any two can be compared: code of the user's own, which no pass can look into, then operations,
then inputs, then elements, then settings that are not torch's own, then the length of the text, then how
plain arguments and values are. Names count for nothing: the script at the end has its own. Equal keys mean
that neither is preferred; the first one found stays.
"""

from __future__ import annotations

from typing import NamedTuple

from torchrepro.edit.cost import asks_for_gradients, cost_of_arguments, cost_of_tensor, count_runs
from torchrepro.edit.held_tensors import all_tensors, count_elements_of
from torchrepro.engine.canonical_key import canonical_text
from torchrepro.nouns.repro import Compiler, Place, Repro


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
    """Characters to write the values (`edit/values/value_cost.py`)."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Ops, inputs, elements: what is shown of it."""
        return (self.ops, self.inputs, self.elements)

    def __str__(self) -> str:
        parts = [(self.ops, "op"), (self.inputs, "input"), (self.elements, "element")]
        return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in parts)


def size_of(repro: Repro) -> Size:
    """The key by which repros are ordered."""
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
    """What a reader must set up that is not torch's default, and calls that must come before."""
    compiler, plain = repro.compiler, Compiler()
    chosen = (compiler.mode != plain.mode) + (compiler.dynamic is not None) + len(compiler.options)
    chosen += compiler.fullgraph
    configs = len(repro.ambient.non_default) + len(repro.ambient.environ) + bool(repro.ambient.rng)
    configs += repro.ambient.threads is not None
    judged = repro.strict + (repro.tolerance is not None) + asks_for_gradients(repro)
    return chosen + configs + judged + len(repro.earlier) + len(repro.symbols)
