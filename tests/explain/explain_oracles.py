"""Cheap judges for tests of `explain`: a function on inputs says what fails. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from torchrepro.engine.queries import Queries
from torchrepro.explain import explain as explain_by_script
from torchrepro.graph_text.printer import write_graph
from torchrepro.judge.models import verdict_of_comparison
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Explanation
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Verdict

Fails = Callable[..., bool]


class Comparing:
    """Says of every result by itself whether it is wrong, as the real judge does: copies are told apart."""

    workers = 2

    def __init__(self, fails: Callable[[list[Any], Repro], bool], kind: Kind = Kind.MISMATCH) -> None:
        self._fails = fails
        self._kind = kind
        self.asked: list[Repro] = []

    def verdict(self, repro: Repro) -> Verdict:
        placeholders = repro.graph.graph.find_nodes(op="placeholder")
        given = dict(zip(placeholders, repro.inputs, strict=True))
        returned = repro.graph.graph.output_node().args[0]
        results = [returned] if isinstance(returned, Node) else list(returned)  # type: ignore[arg-type]
        wrong = [self._fails([given[node] for node in _sources(result)], repro) for result in results]
        if self._kind not in (Kind.MISMATCH, Kind.NON_FINITE):
            return Verdict(self._kind) if any(wrong) else Verdict(Kind.PASS)
        leaves = [
            LeafComparison(f"out[{place}]", Difference.VALUE, blamed=Blame.COMPILED)
            if bad
            else LeafComparison(f"out[{place}]")
            for place, bad in enumerate(wrong)
        ]
        return verdict_of_comparison(Comparison(tuple(leaves)))

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.asked.append(candidate)
            yield index, self.verdict(candidate)

    def record(self, repro: Repro) -> None: ...

    def rounds(self, repro: Repro, *, own: int = 0, seconds: float | None = None) -> list[Verdict]:
        sets = (repro.inputs, *repro.earlier[own:])
        return [self.verdict(replace(repro, inputs=inputs, earlier=())) for inputs in sets]

    def graphs(self, repro: Repro) -> list[Repro]:
        return []

    def queries(self, repro: Repro, **options: Any) -> Queries:
        """Ask this one about variations of a repro, one compilation for all sets of inputs."""
        return Queries(repro, self.verdict(repro), self, observer=self, **options)


def _sources(result: Any) -> list[Node]:
    """The inputs that a result depends on, in the order of the graph."""
    seen: set[Node] = set()
    open_ = [result]
    while open_:
        node = open_.pop()
        if node not in seen:
            seen.add(node)
            open_ += node.all_input_nodes
    return [node for node in seen if node.op == "placeholder"]


def on_inductor(fails: Callable[[torch.Tensor], bool]) -> Callable[[list[Any], Repro], bool]:
    """Fails by what the one input is, and with no backend but inductor."""
    return lambda inputs, repro: repro.compiler.name == "inductor" and fails(inputs[0])


def plain_text(repro: Repro, verdict: Verdict) -> str:
    """A repro as text without a script: its graph, its inputs and what stands around them."""
    lines = [f"compiler = {repro.compiler}"]
    lines += [f"{name} = {value}" for name, value in repro.ambient.non_default.items()]
    names = [str(node.target) for node in repro.graph.graph.find_nodes(op="placeholder")]
    lines += [f"{name} = {_described(value)}" for name, value in zip(names, repro.inputs, strict=False)]
    try:
        graph = write_graph(repro.graph).text
    except TorchReproError:
        graph = repro.graph.code
    return "\n".join([*lines, graph])


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.numel():
        flat = value.detach().reshape(-1)
        if bool((flat == flat[0]).all() or flat.isnan().all()):
            about = f"{flat[0].item()}, dtype={value.dtype}, requires_grad={value.requires_grad}"
            return f"full({tuple(value.shape)}, {about}, stride={value.stride()})"
    return " ".join(repr(value).split())


def explain(queries: Queries, **options: Any) -> Explanation:
    """Explain by a plain text of the repro instead of a script, unless one is given."""
    return explain_by_script(queries, **{"script_text": plain_text, **options})
