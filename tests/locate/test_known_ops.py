"""The culprit op of failing programs with known answers, caught and located by the command line."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.minify.cases import Case, chosen
from benchmarks.processes import Ended, run_limited

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1800)]


def torchrepro(words: list[str], case: Case, scratch: Path) -> Ended:
    command = [sys.executable, "-m", "torchrepro", *words]
    return run_limited(command, case.environment(scratch), scratch, 1500.0, grace=20.0)


def caught(case: Case, scratch: Path) -> str:
    """The bundle of its failure, as a user catches it."""
    if case.injected:
        torchrepro(["run", "--level", "4", "--out", str(scratch / "caught"), *case.program], case, scratch)
        bundles = json.loads((scratch / "caught" / "summary.json").read_text())["bundles"]
        return str(bundles[0]["path"]) if bundles else ""
    words = ["compare", f"{case.path}:build", "--json", "--save", str(scratch / "caught")]
    ended = torchrepro(words, case, scratch)
    return str(json.loads(ended.output).get("bundle") or "")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("c05", "layer_norm"),
        ("c07", "relu"),
        ("c14", "tanh"),
        ("191499_big", "amin"),
    ],
)
def test_the_op_of_a_known_failure_is_named(name: str, op: str, tmp_path: Path) -> None:
    (case,) = chosen([name])
    if not case.injected and not torch.__version__.startswith("2.13."):
        pytest.skip(f"a bug of torch 2.13, this is {torch.__version__}: it may be mended or another")
    bundle = caught(case, tmp_path)
    if not bundle:
        pytest.skip("it does not fail on this machine")
    answer = json.loads(torchrepro(["locate", bundle, "--json"], case, tmp_path).output)
    assert answer["op"] is not None, answer
    assert op in answer["op"]["op"]
    assert len(answer["growth"]) > 20
    assert (
        answer["compiles"] <= 2 * math.log2(len(answer["growth"])) + 40
    )  # passes, work-around and kernel too
