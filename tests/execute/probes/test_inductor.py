"""The probes on inductor itself, with a lowering that is wrong in one way alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from probing import probed, repro_of
from torch._inductor import lowering

from torchrepro.nouns.verdict import Kind

SIN = torch.ops.aten.sin.default


def model(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x.sin() + 1,)


@pytest.mark.slow
def test_a_lowering_that_is_wrong_without_fusion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lowering.lowerings[SIN]

    def wrong_alone(*args: Any, **kwargs: Any) -> Any:
        chosen = torch.ops.aten.cos.default if inductor_config.max_fusion_size == 1 else None
        return right(*args, **kwargs) if chosen is None else lowering.lowerings[chosen](*args, **kwargs)

    monkeypatch.setitem(lowering.lowerings, SIN, wrong_alone)
    verdict = probed(
        Kind.RECOMPILE, repro_of(model, torch.randn(20), compiler="inductor"), tries=("unfused",)
    )
    assert verdict.kind is Kind.RECOMPILE, verdict
    assert "max_fusion_size=1" in verdict.summary


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.REPEAT, Kind.HOLD, Kind.SIZES])
def test_a_healthy_graph_passes(kind: Kind) -> None:
    verdict = probed(kind, repro_of(model, torch.randn(20), compiler="inductor"), seconds=5.0)
    assert verdict.kind is Kind.PASS, verdict
