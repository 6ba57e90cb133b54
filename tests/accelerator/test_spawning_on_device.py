"""Candidates on an accelerator: workers that are used again, until a kernel's fault costs one its device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrepro.engine.processes.executor import Task, executor_for, why_not_forked
from torchrepro.engine.processes.limits import memory_share
from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_device(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Judge, and say in which process; or fault the device."""
    import os

    from torchrepro.execute.judge_repro import judge_repro

    if payload.get("index") is not None:
        phase("run")
        torch.ones(4, device="cuda")[torch.tensor([payload["index"]], device="cuda")]
        torch.cuda.synchronize()
    return {"kind": judge_repro(repro, phase=phase).kind.value, "pid": os.getpid()}


def test_a_worker_is_used_again_until_its_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    repro = Repro(torch.fx.symbolic_trace(lambda x: torch.softmax(x, -1) + 1), (torch.ones(4, 9).cuda(),))
    assert "cuda" in why_not_forked(repro)
    executor = executor_for(repro, workers=1)
    with executor:

        def run(**payload: Any) -> Any:
            limit = memory_share(8)
            executor.start(Task("test_spawning_on_device:on_device", repro, payload, memory_limit=limit))
            return executor.wait()[1]

        first, second = run().result, run().result
        assert first["kind"] == Kind.PASS
        assert first == second
        faulty = run(index=10**6)
        assert "CUDA error" in (faulty.error or {}).get("fact", ""), faulty
        third = run().result
        assert third["kind"] == Kind.PASS
        assert third["pid"] != first["pid"]
        print([first, faulty.seconds, third], file=sys.stderr)
