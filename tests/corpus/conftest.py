from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchrepro import Kind, Repro, Signature, save_bundle
from torchrepro.corpus import replays


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    repro = Repro(graph, (torch.ones(3),), expected=Signature(Kind.MISMATCH))
    return save_bundle(repro, tmp_path_factory.mktemp("template") / "bundle")


@pytest.fixture
def one_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up executor has tools of its own: this process believes that it has the same."""
    monkeypatch.setattr(replays, "tools_of", lambda interpreter: "tools")
