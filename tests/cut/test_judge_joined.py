"""Which of several graphs an exception of their joint compilation is about."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch._inductor import sizevars
from torch._inductor.async_compile import AsyncCompile
from torch.fx import GraphModule
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torchrepro.cut.judge_joined import judge_joined, named_by, untraced
from torchrepro.judge.models import Phases
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind
from torchrepro.torch_api.inductor import GraphLowering, linear_indices_as_they_are, seeing_code


def refuses_cosines(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    for node in graph.graph.nodes:
        if node.target is torch.cos:
            raise RuntimeError("no cosines")
    return graph


def traced(function: Any, compiler: Compiler) -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: (function(x),)), (torch.ones(4, 5),), compiler=compiler)


def test_the_node_that_was_lowered_names_its_graph() -> None:
    compiler = Compiler(f"{__name__}:refuses_cosines")
    repros = [traced(each, compiler) for each in (torch.sin, torch.relu, torch.cos)]
    verdict, _, named = judge_joined(repros, Phases())
    assert verdict.kind is Kind.COMPILE_ERROR
    assert named == {2}


def cosines_of_sines(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    for node in graph.graph.nodes:
        if node.target is torch.sin:
            node.target = torch.cos
    graph.recompile()
    return graph.forward


def test_a_wrong_graph_is_found_without_asking_what_rounding_does_to_all_of_them() -> None:
    phases: list[str] = []
    repros = [traced(each, Compiler(f"{__name__}:cosines_of_sines")) for each in (torch.exp, torch.sin)]
    verdict, whole, named = judge_joined(repros, phases.append)
    own = whole.verdicts(verdict)
    assert own is not None
    assert [each.kind for each in own] == [Kind.PASS, Kind.MISMATCH]
    assert not named
    assert phases[-1] == "compare"


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
    with seeing_code(codes.append):
        repros = [traced(with_a_call, Compiler("inductor")) for _ in range(3)]
        verdict, _, named = judge_joined(repros, Phases())
    assert verdict.kind is Kind.PASS
    assert not named
    code = "".join(codes)
    assert all(f'#line 1 "torchrepro_graph_{number}"' in code for number in range(3))
    assert code.count("async_compile.cpp_pybinding(") == 2, "loops before the calls, and loops after them"


def differentiable(function: Any, *size: int) -> Repro:
    x = torch.linspace(-1.5, 2.0, math.prod(size)).view(size).requires_grad_()
    graph = torch.fx.symbolic_trace(lambda x: (function(x),))
    return Repro(graph, (x,), compiler=Compiler("inductor"))


def cannot_be_traced(x: torch.Tensor) -> torch.Tensor:
    """Backward of a view that AOT takes for another shape (torch 2.13)."""
    return torch.nanmean(torch.sin(x), dim=())


def cannot_be_lowered(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(x, 2, padding=(1,))


@pytest.mark.slow
def test_graphs_that_aot_cannot_trace_are_found_whichever_node_a_frame_holds() -> None:
    good = differentiable(torch.sin, 3)
    bad = differentiable(cannot_be_traced, 3)
    repros = [good, bad, good, good, bad, good]
    assert untraced(repros) == {1, 4}
    verdict, _, named = judge_joined(repros, Phases())
    assert verdict.kind is Kind.COMPILE_ERROR
    assert named == {1, 4}
    assert untraced([good, good]) == frozenset()


@pytest.mark.slow
def test_a_graph_that_cannot_be_lowered_is_left_out_and_the_others_are_judged() -> None:
    repros = [differentiable(each, 1, 2, 6, 6) for each in (torch.sin, cannot_be_lowered, torch.exp)]
    verdict, whole, named = judge_joined(repros, Phases())
    assert named == {1}
    own = whole.verdicts(verdict)
    assert own is not None
    assert [own[place].kind for place in (0, 2)] == [Kind.PASS, Kind.PASS]


@pytest.mark.slow
def test_a_loop_that_the_cpp_compiler_rejects_is_left_out_with_all_of_its_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.erf(x)).values + 1

    loops = {"torchrepro_graph_1": 0}

    def line(compiler: Any, types: Any, source: str) -> Any:
        loops["torchrepro_graph_1"] += source.count("torchrepro_graph_1")
        return compiled(compiler, types, source.replace(".erf()", ".no_such_function()"))

    compiled = AsyncCompile.cpp_pybinding
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", line)
    functions = (torch.sin, planted, lambda x: torch.sort(torch.cos(x)).values + 1)
    verdict, whole, named = judge_joined([differentiable(each, 64) for each in functions], Phases())
    assert named == {1}
    own = whole.verdicts(verdict)
    assert own is not None
    assert [own[place].kind for place in (0, 2)] == [Kind.PASS, Kind.PASS]
    assert loops["torchrepro_graph_1"] == 1, "one loop is rejected; the others are not given to the compiler"


def test_linear_indices_have_the_strides_that_inductor_finds_by_simplifying_them() -> None:
    x, y = sympy.symbols("d0 d1", integer=True, nonnegative=True)
    indices = [4 * x + y, 8 * x + 16 * y + 3, x, sympy.Integer(7), 2 * x * y, x**2 + y]
    indices += [FloorDiv(x, 16) + 2 * y, ModularIndexing(x, 1, 8) + 5 * y]
    stride = sizevars.stride_at_vec_range.__wrapped__  # without its cache
    expected = [stride(index, var, 16) for index in indices for var in (x, y)]
    with linear_indices_as_they_are():
        assert [stride(index, var, 16) for index in indices for var in (x, y)] == expected
