"""Arguments: whether the repro fails with other numbers and switches in its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchrepro.explain.numbers import label_of
from torchrepro.explain.ops import varied_ops, with_node
from torchrepro.explain.sentences import Evidence, listed, sentence_on_values, verbed
from torchrepro.explain.variations import Outcome, Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Repro
from torchrepro.script.names import parameter_names
from torchrepro.torch_api.ops import op_name

_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0)
_WHOLE = (0, 1, -1, 2)


@dataclass(frozen=True, eq=False)
class Argument:
    """A number or a switch among the arguments of an op."""

    node: Node
    key: int | str
    value: Any
    name: str
    op: str

    @property
    def subject(self) -> str:
        return f"{self.op}.{self.name}"


def arguments(repro: Repro) -> list[Argument]:
    """Those that are written in the graph, not computed in it."""
    found: list[Argument] = []
    for node in varied_ops(repro):
        keyed: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        for key, value in keyed:
            if isinstance(value, bool | int | float):
                found.append(Argument(node, key, value, _name(node, key), op_name(node.target)))
    return found


def propose(repro: Repro) -> list[Variation]:
    """Every number and switch in the graph changed."""
    return [changed for argument in arguments(repro) for changed in _changed(repro, argument)]


def facts(repro: Repro, trials: Sequence[Trial]) -> list[Fact]:
    """What was found out about arguments; nothing where nothing could be tried."""
    found: list[Fact] = []
    for argument in arguments(repro):
        own = [t for t in trials if t.variation.subject == argument.subject]
        evidence = Evidence.of(own, own=_label(argument.value))
        if evidence.tried > 1:
            sentence = _sentence(argument, own, evidence)
            found.append(evidence.fact(Area.ARGUMENTS, argument.subject, sentence, argument.subject))
    return found


def _sentence(argument: Argument, trials: Sequence[Trial], evidence: Evidence) -> str:
    what = f"{argument.name} of {argument.op}"
    if isinstance(argument.value, float):
        failing, passing = (
            [t.variation.amount for t in trials if t.outcome is outcome and t.variation.amount is not None]
            for outcome in (Outcome.FAILS, Outcome.PASSES)
        )
        return sentence_on_values([argument.value, *failing], passing, what)
    if not evidence.passing:
        return f"{what}: {listed(evidence.failing)} alike"
    return f"{what}: {verbed(evidence.failing, 'fail')}, {verbed(evidence.passing, 'pass')}"


def _changed(repro: Repro, argument: Argument) -> Iterator[Variation]:
    for value in _alternatives(argument.value):

        def edit(node: Node, value: Any = value) -> None:
            if isinstance(argument.key, int):
                node.update_arg(argument.key, value)
            else:
                node.update_kwarg(argument.key, value)

        label = _label(value)
        yield Variation(
            Area.ARGUMENTS,
            argument.subject,
            label,
            with_node(repro, argument.node, edit),
            f"{argument.name}={label} in {argument.op}",
            amount=None if isinstance(value, bool) else value,
            step=abs(value - argument.value),
        )


def _alternatives(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [other for other in dict.fromkeys((value - 1, value + 1, *_WHOLE)) if other != value]
    return [other for other in dict.fromkeys((*_FLOATS, value / 2, value * 2)) if other != value]


def _name(node: Node, key: int | str) -> str:
    """What the op calls its argument; its place where nobody knows."""
    if isinstance(key, str):
        return key
    target: Any = getattr(torch.Tensor, node.target, None) if isinstance(node.target, str) else node.target
    names = parameter_names(target)
    plain = key < len(names) and names[key].isidentifier() and names[key] not in ("args", "a", "b")
    return names[key] if plain else f"argument {key + 1}"


def _label(value: Any) -> str:
    return str(value) if isinstance(value, bool) else label_of(value)
