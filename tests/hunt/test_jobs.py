"""What becomes of seeds in one process: programs are judged together, and suspects alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from torchrepro.hunt import jobs
from torchrepro.hunt.directory import NO_PROGRAM, SUSPECT, Judged
from torchrepro.hunt.jobs import judge, why_no_program
from torchrepro.hunt.registry import Draw, Generator
from torchrepro.judge.models import Phases
from torchrepro.nouns.repro import Compiler, Repro


def planted(graph: GraphModule, inputs: list[Any]) -> Any:
    """A backend that computes sines wrongly and cannot compile cosines."""
    if "cos" in graph.code:
        raise RuntimeError("no cosines")

    def run(*args: Any) -> Any:
        changed = GraphModule(graph, torch.fx.Graph())
        changed.graph.output(changed.graph.graph_copy(graph.graph, {}))
        for node in changed.graph.nodes:
            if node.target is torch.sin:
                node.target = torch.tan
        changed.recompile()
        return changed(*args)

    return run


_FUNCTIONS = (torch.relu, torch.sin, torch.abs, torch.cos, torch.bernoulli, torch.linalg.inv)


def generate(draw: Draw) -> Repro | None:
    raise NotImplementedError("tests choose by number")


@pytest.fixture
def by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the number of a seed choose its function."""

    def program_of(seed: str, sources: Any = ()) -> jobs.Program:
        function = _FUNCTIONS[int(seed.rpartition("-")[2], 16)]
        graph = torch.fx.symbolic_trace(lambda x: (function(x),))
        compiler = Compiler(f"{__name__}:planted")
        return jobs.Program(seed, Repro(graph, (torch.tensor([0.25, 0.5]),), compiler=compiler))

    monkeypatch.setattr(jobs, "program_of", program_of)


def _judged(seeds: list[str], **more: Any) -> dict[str, str]:
    payload = {"seeds": seeds, "sources": [], "alone": False, **more}
    found = judge(None, payload, Phases())  # type: ignore[arg-type]
    return {each["seed"]: each["kind"] for each in found}


@pytest.mark.usefixtures("by_number")
def test_each_program_of_a_batch_gets_its_own_outcome() -> None:
    found = _judged([f"test-{number}" for number in range(6)])
    assert found == {
        "test-0": "pass",
        "test-1": SUSPECT,
        "test-2": "pass",
        "test-3": SUSPECT,
        "test-4": NO_PROGRAM,
        "test-5": NO_PROGRAM,
    }


@pytest.mark.usefixtures("by_number")
def test_a_program_that_fails_alone_is_saved_as_a_bundle_with_its_seed(tmp_path: Path) -> None:
    bundle = tmp_path / "failing"
    assert _judged(["test-1"], alone=True, bundle=str(bundle)) == {"test-1": "mismatch"}
    assert "seed test-1" in (bundle / "manifest.json").read_text()


def test_programs_that_say_nothing_about_a_compiler_are_left_out() -> None:
    def why(function: Any, *inputs: torch.Tensor) -> str:
        return why_no_program(Repro(torch.fx.symbolic_trace(function), inputs))

    assert why(lambda x: (x + 1,), torch.ones(2)) == ""
    assert why(lambda x: (torch.bernoulli(x),), torch.ones(2)) == "it draws random numbers"
    assert why(lambda x: (x.view(3),), torch.ones(2)) == "eager refuses it: RuntimeError"
    assert "capture breaks the graph" in why(lambda x: (torch.nonzero(x),), torch.ones(2))


def test_a_program_that_writes_to_memory_which_elements_share_says_nothing() -> None:
    """Eager's batch norm writes its running statistics without looking at their strides."""

    def normalised(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.nn.functional.batch_norm(x, mean, var, training=True),)

    graph, x, one = torch.fx.symbolic_trace(normalised), torch.randn(4, 3), torch.ones(1).expand(3)
    assert why_no_program(Repro(graph, (x, torch.zeros(3), torch.ones(3)))) == ""
    assert "elements share" in why_no_program(Repro(graph, (x, torch.zeros(3), one)))
    assert why_no_program(Repro(graph, (x[:1].expand(4, 3) + x, torch.zeros(3), torch.ones(3)))) == ""
    assert why_no_program(Repro(torch.fx.symbolic_trace(lambda x: (x + 1,)), (one,))) == ""


def test_a_generator_is_a_row_and_a_kind_of_verdict_says_whether_a_program_fails() -> None:
    assert Generator("test", f"{__name__}:generate", 1, "for a test").jobs == "torchrepro.hunt.jobs"
    assert Judged("test-1", "mismatch").fails
    assert not Judged("test-1", SUSPECT).fails


def _amin(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.amin(x.to(torch.uint8), 0),)


def _padded_pool(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.nn.functional.avg_pool2d(x.view(1, 2, 4, 4), 2, padding=(1,)),)


def _nanmean(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.nanmean(torch.sin(x), dim=()),)


def _std_of_one(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.std(x[:1]),)


_GOOD = (lambda x: (x.sin() * 2,), lambda x: (x.softmax(0),), lambda x: (x.cumsum(0).relu(),))


@pytest.mark.thorough  # CI has joint compilations in tests/cut/test_judge_joined.py
def test_a_program_that_fails_alone_is_a_suspect_in_a_joint_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch#191499, and what cannot be lowered or traced, on torch 2.13."""
    functions = (*_GOOD, _amin, _padded_pool, *_GOOD, _nanmean, _std_of_one, *_GOOD)

    def program_of(seed: str, sources: Any = ()) -> jobs.Program:
        graph = torch.fx.symbolic_trace(functions[int(seed.rpartition("-")[2], 16)])
        inputs = (torch.linspace(1, 32, 32).requires_grad_(),)
        return jobs.Program(seed, Repro(graph, inputs, compiler=Compiler("inductor")))

    monkeypatch.setattr(jobs, "program_of", program_of)
    seeds = [f"test-{number:x}" for number in range(len(functions))]
    alone: dict[str, str] = {}
    for seed in seeds:
        alone |= _judged([seed], alone=True, bundle=str(tmp_path / seed))
    failing = {seed for seed, kind in alone.items() if kind != "pass"}
    together = _judged(seeds)
    assert {"test-3", "test-4", "test-8"} <= failing or not torch.__version__.startswith("2.13.")
    assert {seed for seed, kind in together.items() if kind == SUSPECT} == failing
