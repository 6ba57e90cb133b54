"""Judge several graphs in one compilation, and name those that an exception is about.

An exception says nothing about the other graphs, which are to be judged without those it names. Two things
name them: the node that was being lowered, whose metadata has the number of its graph, and the C++ compiler,
which is told to call the source of each loop after its graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.fx import Node

from torchrepro.cut.batches import OWNER, SideBySide
from torchrepro.cut.hints import node_worked_on
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.judge.models import Judged, Phase
from torchrepro.nouns.verdict import Verdict
from torchrepro.torch_api.inductor import loops_together, sources_named

_ERROR = re.compile(rf"\b{OWNER}_(\d+):[\d:]* (?:fatal )?error:")


def judge_joined(whole: SideBySide, phase: Phase) -> tuple[Verdict, frozenset[int]]:
    """Return the joint verdict, and the graphs that an exception names, which may be none.

    Eager runs once: one graph that differs from itself would say nothing about the others.
    """
    judged = Judged()
    with loops_together(), sources_named(_source_of):
        verdict = judge_repro(whole.repro, phase=phase, steady=True, judged=judged)
    return verdict, named_by(judged.raised) if judged.raised is not None else frozenset()


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
