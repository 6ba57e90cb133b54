"""Stage, part and workaround with the real inductor, whose own option makes its lowering of relu wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from torchrepro.engine.oracle import IsolatedOracle, Timeout
from torchrepro.engine.processes.executor import executor_for
from torchrepro.engine.search.setup import Rehearsal
from torchrepro.locate.component import find_part
from torchrepro.locate.context import Inquiry
from torchrepro.locate.stages import find_stage
from torchrepro.locate.workaround import find_workaround
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind, Stage

WRONG_RELU = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}


@pytest.fixture
def oracle() -> Iterator[IsolatedOracle]:
    with closing(executor_for(wrong_relu(), 1)) as executor:
        Rehearsal(Compiler(), executor).finish()
        yield IsolatedOracle(executor, Timeout(30.0))


def wrong_relu() -> Repro:
    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(x.sin()) * 2,)

    inputs = (torch.linspace(-1, 1, 20),)
    return Repro(torch.fx.symbolic_trace(function), inputs, compiler=Compiler(options=WRONG_RELU))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wrong_lowering_of_inductor_is_found_and_a_workaround_verified(oracle: IsolatedOracle) -> None:
    repro = wrong_relu()
    ((_, verdict),) = oracle.judge([repro])
    assert verdict.kind is Kind.MISMATCH
    inquiry = Inquiry(repro, verdict, oracle)

    ladder = find_stage(inquiry)
    assert ladder.stage is Stage.BACKEND
    found = find_part(inquiry, ladder.stage, suspects=["torch.relu"])
    assert found is not None
    assert (found.part.kind, found.part.name) == ("lowering", "aten.relu.default")
    workaround = find_workaround(inquiry, ladder, found)
    assert workaround is not None
    assert workaround.verified
    assert workaround.options == {**WRONG_RELU, "fallback_by_default": True}
    assert inquiry.asked <= 6
    assert not list(Path(torch._inductor.runtime.cache_dir_utils.cache_dir()).glob("bisect"))
