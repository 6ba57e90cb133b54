"""The rule by which failures like one that was explained are recognised. Needs no torch.

A rule is made of a minimal repro: the ops on which its wrong result depends, and what `explain` has found
about its inputs (dtypes, sizes, values, layouts). A failing program is a known failure if all of this holds:

- it fails in the same way: the same signature, and for values the same kind of verdict;
- it calls these ops, each on those before it, with operands that the facts admit;
- what the minimal repro calls by name, it calls by name or it is among the ops that it is made of;
- each of its wrong results depends on such calls; one that does not is a failure of its own.

What a rule cannot tell apart is another bug of the same op on the same operands that fails in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchrepro.nouns.limits import Limits
from torchrepro.nouns.verdict import Signature

if TYPE_CHECKING:
    import torch

    from torchrepro.hunt.op_calls import OpCall, Operand

_MOST_TRIES = 10_000


@dataclass(frozen=True, slots=True)
class KnownOperand:
    """What an operand has to be for the failure to be the known one."""

    dtypes: tuple[str, ...]
    sizes: tuple[Limits, ...] = ()
    """Each must admit the size of one dimension, or the number of elements."""
    values: Limits | None = None
    """Some element must be admitted."""
    contiguous: bool | None = None

    def admits(self, operand: Operand) -> bool:
        if operand.dtype not in self.dtypes or self.contiguous not in (None, operand.contiguous):
            return False
        counts = (*operand.shape, math.prod(operand.shape))
        if not all(any(map(limits.admits, counts)) for limits in self.sizes):
            return False
        return self.values is None or operand.value is None or _some(operand.value, self.values)

    def __str__(self) -> str:
        words = ["|".join(self.dtypes), *(f"size {limits}" for limits in self.sizes)]
        words += [f"a value {self.values}"] if self.values is not None else []
        words += [] if self.contiguous is None else ["contiguous" if self.contiguous else "not contiguous"]
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class KnownOp:
    """A call that takes part in the failure."""

    op: str
    operands: tuple[KnownOperand, ...]
    arguments: str | None = None
    """What its other arguments have to be; None: anything."""
    after: tuple[int, ...] = ()
    """The numbers of the ops of the rule on which it depends."""

    def admits(self, call: OpCall) -> bool:
        return (
            call.op == self.op
            and self.arguments in (None, call.arguments)
            and len(call.operands) == len(self.operands)
            and all(wanted.admits(given) for wanted, given in zip(self.operands, call.operands, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """What the failures of a bucket have in common, as far as their ops and operands tell."""

    signature: Signature
    ops: tuple[KnownOp, ...]
    named: tuple[str, ...] = ()
    """What the minimal repro calls in its graph: `dropout`, of which only a `mul` reaches the dispatcher."""
    settings: str = ""
    """The compiler and its settings, where they matter; empty: any."""

    def __str__(self) -> str:
        return " then ".join(
            f"{each.op}({'; '.join(map(str, each.operands))})" if each.operands else each.op
            for each in self.ops
        )


def is_known(rule: Rule, calls: Sequence[OpCall], wrong: Sequence[frozenset[int]]) -> bool:
    """Return whether each wrong result depends on calls that satisfy the rule; any calls where none is."""
    everything = frozenset(range(len(calls)))
    return all(_satisfied(rule, calls, within) for within in wrong or (everything,))


def _satisfied(rule: Rule, calls: Sequence[OpCall], within: frozenset[int]) -> bool:
    candidates = [[n for n in sorted(within) if known.admits(calls[n])] for known in rule.ops]
    tries = 0

    def fits(chosen: tuple[int, ...]) -> bool:
        nonlocal tries
        if len(chosen) == len(rule.ops):
            return True
        known = rule.ops[len(chosen)]
        for number in candidates[len(chosen)]:
            tries += 1
            if tries > _MOST_TRIES:
                return False
            reads = all(chosen[place] in calls[number].depends for place in known.after)
            if number not in chosen and reads and fits((*chosen, number)):
                return True
        return False

    return fits(())


def _some(values: torch.Tensor, limits: Limits) -> bool:
    """Return whether a tensor has an element that the limits admit."""
    if values.is_complex() or not values.numel():
        return True
    return any(map(limits.admits, values.reshape(-1).double().unique().tolist()))
