"""Whose fault is a fault of the device? Eager is asked alone, in a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchrepro.engine.check_bundle import eager_fails
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import save_bundle


@pytest.mark.slow
@pytest.mark.parametrize(("index", "fails"), [(2, False), (7, True)])
def test_a_graph_that_fails_in_eager_is_told_from_one_that_does_not(
    index: int, fails: bool, tmp_path: Path
) -> None:
    graph = torch.fx.symbolic_trace(lambda x, places: x[places].sin())
    repro = Repro(graph, (torch.arange(4.0), torch.tensor([0, index])))
    assert eager_fails(save_bundle(repro, tmp_path / "bundle")) is fails
