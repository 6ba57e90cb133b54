"""Warming up takes what a child has rehearsed, and whatever goes wrong there does no harm here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from torchrepro.engine.processes.executor import Executor
from torchrepro.engine.processes.fork_safety import prepare_to_fork
from torchrepro.engine.search.setup import Rehearsal
from torchrepro.nouns.repro import Compiler


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    prepare_to_fork()
    # The test runner may have a thread of its own, which no child needs.
    monkeypatch.setattr("torchrepro.engine.processes.executor.why_not_fork", lambda: "")
    with Executor(workers=1) as executor:
        yield executor


@pytest.mark.parametrize(
    ("name", "reason"),
    [("crashes", "SIGABRT"), ("hangs", "did not finish"), ("starts_a_thread", "other thread")],
)
def test_a_compiler_that_fails_in_the_rehearsal_is_not_tried_here(
    executor: Executor, name: str, reason: str
) -> None:
    compiler = Compiler(f"throwaway_compilers:{name}")
    assert reason in Rehearsal(compiler, executor, time_limit=3).finish()


@pytest.mark.slow
def test_a_backend_of_torch_is_warmed_up_and_draws_no_random_numbers(executor: Executor) -> None:
    before = torch.get_rng_state()
    assert Rehearsal(Compiler("aot_eager", mode="unheard of"), executor).finish() == ""
    assert torch.equal(torch.get_rng_state(), before)


_PROGRAM = """
import json, os, sys, torch
from torchrepro.engine.processes.executor import Task
from torchrepro.engine.processes.fork_safety import prepare_to_fork, why_not_fork
from torchrepro.engine.processes.executor import Executor
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.engine.search.setup import Rehearsal

def judged(repro, payload, phase):
    from torchrepro.execute.judge_repro import judge_repro
    before = set(sys.modules)
    verdict = judge_repro(repro, phase=phase)
    needed = {name for name in set(sys.modules) - before if name.startswith(("torch.", "sympy."))}
    return [verdict.kind.value, len(needed)]

if __name__ == "__main__":
    prepare_to_fork()
    with Executor(1) as executor:
        assert Rehearsal(Compiler(), executor).finish() == "", "cold"
        assert why_not_fork() == "", why_not_fork()
        graph = torch.fx.symbolic_trace(lambda x: (torch.softmax(x * 2, -1) - 1,))
        executor.start(Task("__main__:judged", Repro(graph, (torch.ones(4, 20, requires_grad=True),))))
        print(json.dumps(executor.wait()[1].result))
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_child_of_a_warm_process_has_next_to_nothing_to_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    kind, imported = json.loads(done.stdout.splitlines()[-1])
    assert kind == "pass"
    assert imported < 20  # without the warm-up: hundreds
