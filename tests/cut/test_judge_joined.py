"""Which of several graphs an exception of their joint compilation is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from torchrepro.cut.batches import joined
from torchrepro.cut.judge_joined import judge_joined, named_by
from torchrepro.judge.models import Phases
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind
from torchrepro.torch_api.inductor import GraphLowering, seeing_code


def refuses_cosines(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    for node in graph.graph.nodes:
        if node.target is torch.cos:
            raise RuntimeError("no cosines")
    return graph


def traced(function: Any, compiler: Compiler) -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: (function(x),)), (torch.ones(4, 5),), compiler=compiler)


def test_the_node_that_was_lowered_names_its_graph() -> None:
    compiler = Compiler(f"{__name__}:refuses_cosines")
    whole = joined([traced(each, compiler) for each in (torch.sin, torch.relu, torch.cos)])
    verdict, named = judge_joined(whole, Phases())
    assert verdict.kind is Kind.COMPILE_ERROR
    assert named == {2}


def test_the_cpp_compiler_names_each_graph_that_it_rejects() -> None:
    text = "In function:\ntorchrepro_graph_3:12:5: error: no\ntorchrepro_graph_4:1:2: warning: odd\n"
    assert named_by(RuntimeError(text + "torchrepro_graph_11:7:1: error: no\n")) == {3, 11}
    assert named_by(RuntimeError("a cause in no graph")) == frozenset()


@pytest.mark.slow
def test_generated_loops_are_named_and_share_a_file_although_calls_are_between_them() -> None:
    def with_a_call(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x + 1).values * 2

    assert GraphLowering, "imported: code is seen only where inductor is"
    codes: list[str] = []
    whole = joined([traced(with_a_call, Compiler("inductor")) for _ in range(3)])
    with seeing_code(codes.append):
        verdict, named = judge_joined(whole, Phases())
    assert verdict.kind is Kind.PASS
    assert not named
    code = "".join(codes)
    assert all(f'#line 1 "torchrepro_graph_{number}"' in code for number in range(3))
    assert code.count("async_compile.cpp_pybinding(") == 2, "loops before the calls, and loops after them"
