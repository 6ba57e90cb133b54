"""The checks of `torchrepro doctor` that import torch: each is a job for a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from torchrepro.judge.models import Phase


def torch_here(payload: Mapping[str, Any], phase: Phase) -> dict[str, Any]:
    """Return what torch says about itself; importing this module was the check."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": str(torch.__version__),
        "built_for": str(torch.version.cuda or torch.version.hip or ""),
        "gpus": [torch.cuda.get_device_name(index) for index in range(gpus)],
        "triton": find_spec("triton") is not None,
    }


def compile_a_graph(payload: Mapping[str, Any], phase: Phase) -> dict[str, Any]:
    """Compile a small graph on a device, run it and compare it with eager."""
    from torchrepro.engine.search.setup import throwaway
    from torchrepro.execute.judge_repro import judge_repro
    from torchrepro.nouns.repro import Compiler

    verdict = judge_repro(throwaway(Compiler("inductor"), payload["device"]), phase=phase)
    return {"fails": verdict.fails or not verdict.testable, "verdict": str(verdict)}


def fork_after_import(payload: Mapping[str, Any], phase: Phase) -> str:
    """Return why this process cannot be forked after it has imported the compiler; empty if it can.

    A child then compiles, as candidates do (`require_forks`): it is a TorchReproError if it does not answer.
    """
    from torchrepro.engine.processes.fork_safety import prepare_to_fork, why_not_fork
    from torchrepro.engine.search.setup import require_forks

    prepare_to_fork()
    reason = why_not_fork()
    if not reason:
        require_forks()
    return reason
