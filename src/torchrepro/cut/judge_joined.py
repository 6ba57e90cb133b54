"""Judge several graphs in one compilation, and name those that an exception is about.

What cannot be lowered or is rejected by the C++ compiler is left out, and its graph named: the others go on.
An exception says nothing about the other graphs, which are to be judged without those it names. Two things
name them: the node that was being lowered, whose metadata has the number of its graph, and the C++ compiler,
which is made to call the source of each loop after its graph. An exception of AOT is raised where no node is
lowered, and a frame may hold one by chance: there, the graphs that AOT cannot trace are found by halving.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torch.fx import Node

from torchrepro.cut.batches import OWNER, SideBySide, joined
from torchrepro.cut.hints import node_worked_on
from torchrepro.execute.judge_repro import judge_repro, repro_common
from torchrepro.judge.models import Judged, Phase
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Stage, Verdict
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.inductor import failing_left_out, linear_indices_as_they_are, loops_together

_ERROR = re.compile(rf"\b{OWNER}_(\d+):[\d:]* (?:fatal )?error:")


_TRACED = Compiler("aot_eager_decomp_partition")
"""Does what inductor does before it lowers a graph, in a tenth of the time."""


def judge_joined(repros: Sequence[Repro], phase: Phase) -> tuple[Verdict, SideBySide, frozenset[int]]:
    """Return the joint verdict, and the graphs on which it says nothing, as they fail to compile.

    Where an exception names no graph, there may be none. Eager runs once: one graph that differs from itself
    would say nothing about the others. Whether rounding explains a difference is left to those who judge that
    graph alone.
    """
    whole = joined(repros)
    judged = Judged()
    with loops_together(), linear_indices_as_they_are(), failing_left_out(_source_of) as left_out:
        verdict = judge_repro(whole.repro, phase=phase, steady=True, ask_rounding=False, judged=judged)
    named = frozenset(int(name.removeprefix(f"{OWNER}_")) for name in left_out)
    if judged.raised is not None:
        by_aot = verdict.stage in (Stage.AOT, Stage.DECOMPOSITION)
        named |= untraced(repros) if by_aot else named_by(judged.raised)
    return verdict, whole, named


def untraced(repros: Sequence[Repro]) -> frozenset[int]:
    """Return the numbers of the repros that AOT cannot trace, if they cannot be traced together."""

    def among(numbers: Sequence[int]) -> frozenset[int]:
        if _is_traced([repros[number] for number in numbers]):
            return frozenset()
        if len(numbers) == 1:
            return frozenset(numbers)
        middle = len(numbers) // 2
        return among(numbers[:middle]) | among(numbers[middle:])

    return among(range(len(repros)))


def _is_traced(repros: Sequence[Repro]) -> bool:
    repro = replace(joined(repros).repro, compiler=_TRACED)
    try:
        with applied_settings(repro.ambient):
            repro_common(repro).compile()
    except Exception:  # whatever torch raises for a graph
        return False
    return True


def named_by(raised: Exception) -> frozenset[int]:
    """Return the graphs that an exception of a joint compilation is about."""
    refused = frozenset(map(int, _ERROR.findall(str(raised))))
    node = node_worked_on(raised)
    return refused or (frozenset() if node is None else _owners([node]))


def _owners(nodes: Sequence[Node]) -> frozenset[int]:
    """Return the graphs of nodes that torch made of a joint graph, as far as they are known."""
    owners = (node.meta.get("custom", {}).get(OWNER) for node in nodes)
    return frozenset(owner for owner in owners if owner is not None)


def _source_of(nodes: Sequence[Node]) -> str:
    """Return what the C++ compiler is to call the source of a loop; empty if its graph is unknown."""
    owners = _owners(nodes)
    return f"{OWNER}_{min(owners)}" if len(owners) == 1 else ""
