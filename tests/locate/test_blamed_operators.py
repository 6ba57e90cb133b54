"""A custom operator is blamed before any compiler, if it breaks a promise and the failure needs it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import contract_operators
import pytest
import torch
from synthetic_compiler import Asked, inquiry_of
from wrong_compilers import inquiry_on

from torchrepro import Compiler, Repro, locate_bundle, save_bundle
from torchrepro.cut.record_values import observed_values
from torchrepro.locate.context import Inquiry
from torchrepro.locate.job import ANSWERS, Case, answered
from torchrepro.locate.operators import FAKES, find_operator, nodes_calling, rung_of
from torchrepro.locate.settings import LocateDirectory
from torchrepro.locate.watched_graph import Watching
from torchrepro.nouns.contracts import Contract, FakeDifference, OperatorChecks, Violation
from torchrepro.nouns.results import Confidence, Located, Way
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Stage, Verdict

assert contract_operators  # registers the operators
OPERATORS = torch.ops.contracts
CASES = Path(__file__).parents[1] / "cases" / "operators"
sys.path.insert(0, str(CASES))
fastops = importlib.import_module("fastops")


def violation(op: str, contract: Contract = Contract.STRIDE) -> Violation:
    return Violation(
        f"contracts::{op}", contract, "result", "stride (4, 1)", "stride (1, 3)", "say so", "ops.py:7"
    )


def repro() -> Repro:
    def program(x: torch.Tensor) -> tuple[torch.Tensor]:
        first, second = OPERATORS.two_results_healthy(OPERATORS.stride(x))
        return (OPERATORS.shape_healthy(first * 2) + second,)

    return Repro(torch.fx.symbolic_trace(program), (torch.randn(3, 4),))


def inquiry_needing(*names: str) -> Inquiry:
    """Return an inquiry into a failure that needs one of these operators."""

    def answer(asked: Asked) -> Kind:
        graph = asked.repro.graph.graph
        return Kind.MISMATCH if any(nodes_calling(graph, name) for name in names) else Kind.PASS

    return inquiry_of(answer, repro=repro())


def watching(inquiry: Inquiry) -> Watching:
    return Watching(inquiry, observed_values(inquiry.repro, limit=1 << 20), 1 << 20)


def test_an_operator_is_blamed_if_the_failure_goes_away_without_it() -> None:
    inquiry = inquiry_needing("contracts::stride")
    found = find_operator(inquiry, watching(inquiry), OperatorChecks(violations=(violation("stride"),)))
    assert found is not None
    assert (found.blamed, found.confidence) == ("operator contracts::stride", Confidence.VERIFIED)
    assert found.op is not None
    assert (found.op.op, found.op.way) == ("contracts.stride", Way.CONTRACT)


def test_an_operator_is_not_blamed_if_the_failure_stays_without_it() -> None:
    inquiry = inquiry_needing("contracts::shape_healthy")
    checks = OperatorChecks(violations=(violation("stride"),))
    assert find_operator(inquiry, watching(inquiry), checks) is None
    assert "the failure stays without" in inquiry.notes[-1]


def test_of_several_that_break_a_promise_the_one_is_blamed_that_the_failure_needs() -> None:
    inquiry = inquiry_needing("contracts::two_results_healthy")
    broken = (violation("stride"), violation("two_results_healthy"), violation("shape_healthy"))
    found = find_operator(inquiry, watching(inquiry), OperatorChecks(violations=broken))
    assert found is not None
    assert found.blamed == "operator contracts::two_results_healthy"


def test_two_operators_that_each_make_it_fail_are_both_blamed() -> None:
    inquiry = inquiry_needing("contracts::stride", "contracts::shape_healthy")
    broken = (violation("stride"), violation("shape_healthy"))
    found = find_operator(inquiry, watching(inquiry), OperatorChecks(violations=broken))
    assert found is not None
    assert found.blamed == "operators contracts::stride and contracts::shape_healthy"


def test_what_cannot_be_left_out_is_likely_and_not_verified() -> None:
    inquiry = inquiry_needing("contracts::stride")
    found = find_operator(inquiry, None, OperatorChecks(violations=(violation("stride"),)))
    assert found is not None
    assert found.confidence is Confidence.LIKELY


def test_a_wrong_backward_explains_nothing_but_wrong_gradients() -> None:
    checks = OperatorChecks(violations=(violation("stride", Contract.BACKWARD),))

    def found_with(path: str) -> Any:
        def answer(asked: Asked) -> Kind:
            calls = nodes_calling(asked.repro.graph.graph, "contracts::stride")
            return Kind.MISMATCH if calls else Kind.PASS

        comparison = Comparison((LeafComparison(path, Difference.VALUE),))
        verdict = Verdict(Kind.MISMATCH, comparison=comparison)
        inquiry = inquiry_of(answer, repro=repro(), verdict=verdict)
        return find_operator(inquiry, watching(inquiry), checks)

    assert found_with("out[0]") is None
    assert found_with('grad["inputs[0]"]') is not None


@pytest.mark.parametrize(
    ("checks", "kind", "said"),
    [
        (OperatorChecks(), None, ""),
        (OperatorChecks(operators=("contracts::stride",)), Kind.PASS, "agree"),
        (OperatorChecks(violations=(violation("stride"),)), Kind.MISMATCH, "contracts::stride"),
        (
            OperatorChecks(differences=(FakeDifference("aten::a", Contract.STRIDE, "result"),)),
            Kind.PASS,
            "not counted",
        ),
        (
            OperatorChecks(differences=(FakeDifference("aten::a", Contract.DTYPE, "result"),)),
            Kind.MISMATCH,
            "aten::a",
        ),
    ],
)
def test_fake_tensors_are_a_rung_and_strides_of_torchs_own_operators_do_not_fail_it(
    checks: OperatorChecks, kind: Kind | None, said: str
) -> None:
    rung = rung_of(checks)
    if kind is None:
        assert rung is None
        return
    assert rung is not None
    assert (rung.backend, rung.stage, rung.kind) == (FAKES, Stage.NONE, kind)
    assert said in rung.summary


def test_once_an_operator_is_blamed_no_step_asks_about_the_compiler(tmp_path: Path) -> None:
    case = Case(inquiry_needing("contracts::stride"), LocateDirectory(tmp_path))

    def blame(case: Case, found: Located) -> dict[str, Any]:
        return {"blamed": "operator contracts::stride", "confidence": Confidence.VERIFIED}

    def stage(case: Case, found: Located) -> dict[str, Any]:
        raise AssertionError("not asked")

    found = answered({"operators": blame, "stage": stage}, case, Located(bundle="b", kind=Kind.MISMATCH))
    assert found.found
    assert found.exit_code == 0
    assert found.stage is Stage.NONE
    assert found.to_dict()["blamed"] == "operator contracts::stride"


def style(x: torch.Tensor) -> tuple[torch.Tensor]:
    """The decomposition of softmax keeps the strides that the fake kernel gives, and then a view fails."""
    return (torch.softmax(torch.ops.fastops.gram(x, 0.5) * 3, -1) @ torch.ones(8, 4),)


def in_this_process(program: Any, compiler: str, tmp_path: Path) -> Located:
    """Answer the question about operators with a real judge."""
    found = Repro(
        torch.fx.symbolic_trace(program),
        (torch.randn(2, 8, 16, requires_grad=True),),
        compiler=Compiler(compiler),
    )
    case = Case(inquiry_on(found), LocateDirectory(tmp_path))
    question = "which operators do not do what they declare"
    return answered({question: ANSWERS[question]}, case, Located(bundle="b", kind=Kind.RUN_ERROR))


def test_a_wrong_fake_kernel_is_blamed_and_no_decomposition(tmp_path: Path) -> None:
    found = in_this_process(style, "aot_eager_decomp_partition", tmp_path)
    assert (found.blamed, found.confidence) == ("operator fastops::gram", Confidence.VERIFIED)
    (one,) = found.violations
    line = fastops.gram_fake.__code__.co_firstlineno
    assert (one.contract, one.registered) == (Contract.STRIDE, f"fastops.py:{line}")
    assert [rung.backend for rung in found.rungs] == [FAKES]


def test_a_compiler_that_is_wrong_next_to_a_healthy_operator_is_not_excused(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(torch.ops.fastops.honest_gram(x, 0.5)),)

    found = in_this_process(program, "wrong_compilers:wrong_relu", tmp_path)
    assert (found.blamed, found.violations) == ("", ())


def test_a_compiler_that_is_wrong_next_to_a_wrong_operator_is_not_excused(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(torch.ops.fastops.gram(x, 0.5)),)

    found = in_this_process(program, "wrong_compilers:wrong_relu", tmp_path)
    assert found.blamed == ""
    assert [one.op for one in found.violations] == ["fastops::gram"]


@pytest.mark.slow
def test_locate_blames_the_operator_of_a_bundle(tmp_path: Path) -> None:
    found = Repro(
        torch.fx.symbolic_trace(style),
        (torch.rand(2, 8, 16, requires_grad=True),),
        compiler=Compiler("aot_eager_decomp_partition"),
    )
    located = locate_bundle(save_bundle(found, tmp_path / "bundle"))
    assert (located.blamed, located.confidence) == ("operator fastops::gram", Confidence.VERIFIED)
    line = fastops.gram_fake.__code__.co_firstlineno
    assert located.violations[0].registered == f"fastops.py:{line}", "its source is run from the bundle"
    assert located.part is None
    kept = json.loads((Path(located.directory) / "result.json").read_text())
    assert kept["blamed"] == "operator fastops::gram"
