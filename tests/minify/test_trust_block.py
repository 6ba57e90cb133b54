"""What maintainers ask first is in the docstring of the script; what is unknown is left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrepro import Repro, save_bundle
from torchrepro.engine.baseline import Original
from torchrepro.minify.trust_block import trust_block
from torchrepro.nouns.verdict import Kind, Raised, Verdict

CODE = "cpp_fused_sin_0 = async_compile.cpp_pybinding(['float*'], r'''\nkernel\n''')\n"
ANSWERS = {
    "same": "fails on out[0] (tol=0.0001)",
    "default_tolerances": "fails on out[0]: 3 of 3; Greatest absolute difference: 1",
    "precision_casts": "unknown: it was not asked",
}


class Asked:
    """Answers the jobs that measure and generate."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.jobs: list[str] = []
        self._answers = answers

    def ran(self, job: str, repro: Repro, **payload: Any) -> SimpleNamespace:
        self.jobs.append(job.rpartition(":")[2])
        code = [CODE]
        measures = self.jobs[-1] == "measure"
        return SimpleNamespace(result={"answers": self._answers, "code": code} if measures else code)


def lines_about(verdict: Verdict, asked: Asked, tmp_path: Path, failing: int = 3) -> tuple[str, ...]:
    repro = Repro(torch.fx.symbolic_trace(lambda x: (torch.sin(x),)), (torch.ones(3),))
    bundle = save_bundle(repro, tmp_path / "failing")
    problem = SimpleNamespace(best=repro, original=repro, best_verdict=verdict)
    return trust_block(problem, asked, bundle, Original(verdict, 3, failing))  # type: ignore[arg-type]


def test_wrong_values_are_measured_and_the_kernel_is_compared(tmp_path: Path) -> None:
    asked = Asked(ANSWERS)
    lines = lines_about(Verdict(Kind.MISMATCH), asked, tmp_path)
    assert lines[:2] == ("same, fp64: fails on out[0] (tol=0.0001)", "assert_close: fails on out[0]: 3 of 3")
    assert lines[2].startswith("kernel: yes: ")
    assert lines[3].startswith("labels: oncall: pt2, module: inductor, module: correctness (silent)")
    assert asked.jobs == ["measure", "generate"]


def test_of_a_flaky_failure_the_rate_is_told_and_no_single_run_is_an_answer(tmp_path: Path) -> None:
    asked = Asked(ANSWERS)
    lines = lines_about(Verdict(Kind.MISMATCH), asked, tmp_path, failing=1)
    assert lines[0] == "flaky: fails in 1 of 3 runs"
    assert [line.partition(":")[0] for line in lines[1:]] == ["labels"]
    assert asked.jobs == []


def test_an_exception_of_the_compiler_is_not_run_again(tmp_path: Path) -> None:
    asked = Asked(ANSWERS)
    raised = Verdict(Kind.COMPILE_ERROR, raised=Raised("KeyError", "buf0"))
    assert lines_about(raised, asked, tmp_path) == (
        "labels: oncall: pt2, module: inductor, oncall: cpu inductor",
    )
    assert asked.jobs == []


@pytest.mark.slow
def test_the_jobs_answer_about_a_repro() -> None:
    from torchrepro.engine.jobs import generate, measure

    repro = Repro(torch.fx.symbolic_trace(lambda x: (torch.sin(x),)), (torch.rand(3),), backward=False)
    told = measure(repro, {}, lambda phase: None)
    assert told["answers"]["same"].startswith("passes")
    assert told["answers"]["precision_casts"] == "not applicable: it does not fail on this machine"
    assert told["code"]
    assert len(generate(repro, {}, lambda phase: None)) == len(told["code"])
