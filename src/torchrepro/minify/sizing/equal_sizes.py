"""Which sizes are taken to be the same one where that cannot be found out: those that are equal.

Numbers in arguments count where an op is known to take sizes there. A wrong guess makes a candidate that does
not run, and costs no query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchrepro.minify.editing.literals import Literal, literals_of
from torchrepro.minify.sizing.symbolic_sizes import Axis, Traced, Unknown
from torchrepro.minify.valuing.held_tensors import Held
from torchrepro.repro import Repro

_TAKES_SIZES = (
    *("view", "reshape", "expand", "broadcast_to", "unflatten", "split", "full", "zeros", "ones", "empty"),
    *("rand", "randn", "randint", "arange", "linspace", "layer_norm", "rms_norm", "narrow", "slice"),
    *("as_strided", "resize", "getitem", "setitem", "embedding_dense_backward", "select_backward", "repeat"),
)
"""In the names of ops whose whole numbers are sizes or ends of ranges, as a rule."""


def numbers_that_are_sizes(repro: Repro) -> Iterator[tuple[Literal, int]]:
    """Whole numbers above 1 in the arguments of ops that take sizes, by their names."""
    for node in repro.graph.graph.nodes:
        name = str(getattr(node.target, "__name__", node.target))
        if not any(word in name for word in _TAKES_SIZES):
            continue
        for literal, value in literals_of(node, int):
            # A plain index picks one of several; only the ends of a slice are sizes.
            if value > 1 and ("item" not in name or literal.path[-1] in ("start", "stop")):
                yield literal, value


def equal_sizes(repro: Repro, held: Sequence[Held]) -> Traced:
    """One unknown for each size above 1, with all axes and numbers that have it; and for other numbers."""
    members: dict[int, list[Axis | Literal]] = {}
    for number, each in enumerate(held):
        for axis, size in enumerate(each.tensor.shape):
            if size > 1:
                members.setdefault(size, []).append(Axis(number, axis))
    numbers: dict[int, list[Axis | Literal]] = {}
    for literal, value in numbers_that_are_sizes(repro):
        (members if value in members else numbers).setdefault(value, []).append(literal)
    placeholders = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, repro.inputs, strict=False):
        if type(value) is int and value in members:
            members[value].append(Literal(node.name, ()))
    sizes = [Unknown(f"size {size}", tuple(found)) for size, found in members.items()]
    others = [Unknown(f"number {value}", tuple(found)) for value, found in numbers.items()]
    return Traced((*sizes, *others), in_shapes=frozenset(each.name for each in others))
