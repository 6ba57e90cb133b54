"""The nearest passing neighbour is the smallest edit of the script, and was seen to pass by itself."""

from __future__ import annotations

from typing import Any

import torch
from explain_oracles import Comparing, explain, on_inductor

from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


def _two(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(torch.relu(x), x),)


def test_the_diff_is_between_the_scripts_that_a_reader_is_shown() -> None:
    def script(repro: Repro, verdict: Verdict) -> str:
        assert verdict.fails
        return f"import torch\n\nx = torch.ones{tuple(repro.inputs[0].shape)}, {repro.inputs[0].dtype}\n"

    repro = Repro(torch.fx.symbolic_trace(lambda x: (torch.neg(x),)), (torch.ones(5),))
    oracle = Comparing(on_inductor(lambda x: x.shape[0] >= 5))
    found = explain(oracle.queries(repro), script_text=script)
    assert found.neighbour is not None
    assert found.neighbour.diff == (
        "--- fails.py\n+++ passes.py\n@@ -1,3 +1,3 @@\n import torch\n \n"
        "-x = torch.ones(5,), torch.float32\n+x = torch.ones(4,), torch.float32\n"
    )
    assert found.neighbour.repro.inputs[0].shape == (4,)


def test_what_passes_only_in_company_is_no_neighbour() -> None:
    class Misleading(Comparing):
        def verdict(self, repro: Repro) -> Verdict:
            alone = len(repro.graph.graph.output_node().args[0]) == 1  # type: ignore[arg-type]
            small = any(isinstance(x, torch.Tensor) and x.shape[0] == 4 for x in repro.inputs)
            if alone and small and repro.compiler.name == "inductor":
                return Comparing(lambda inputs, repro: True).verdict(repro)
            return super().verdict(repro)

    repro = Repro(torch.fx.symbolic_trace(lambda x: (torch.neg(x),)), (torch.ones(5),))
    oracle = Misleading(on_inductor(lambda x: x.shape[0] >= 5))
    found = explain(oracle.queries(repro))
    assert found.neighbour is not None
    assert found.neighbour.description == "size 3 in dim 0 of x"


def test_where_nothing_else_passes_an_op_is_left_out() -> None:
    def fails(inputs: list[Any], repro: Repro) -> bool:
        targets = {node.target for node in repro.graph.graph.nodes}
        return repro.compiler.name == "inductor" and len(targets) > 3

    repro = Repro(torch.fx.symbolic_trace(_two), (torch.ones(2, 2),))
    oracle = Comparing(fails, Kind.COMPILE_ERROR)
    found = explain(oracle.queries(repro))
    assert found.neighbour is not None
    assert found.neighbour.description == "without relu"
    assert "-        relu = torch.relu(x)" in found.neighbour.diff


def test_a_neighbour_that_the_script_does_not_show_is_none() -> None:
    repro = Repro(torch.fx.symbolic_trace(lambda x: (torch.neg(x),)), (torch.ones(5),))
    oracle = Comparing(on_inductor(lambda x: x.shape[0] >= 5))
    found = explain(oracle.queries(repro), script_text=lambda repro, verdict: "the same\n")
    assert found.neighbour is None
