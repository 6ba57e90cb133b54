"""Which op crashes by itself is told by what was printed before it died; else it is bisected."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from torchrepro.cut.failing_windows import failing_ones
from torchrepro.cut.record_values import observed_values
from torchrepro.cut.windows import windows_of
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

OPS = (torch.sin, torch.cos, torch.tan, torch.exp, torch.abs, torch.tanh)


def chain(x: torch.Tensor) -> torch.Tensor:
    for op in OPS:
        x = op(x)
    return x


def tried(culprit: str, printed: str | None) -> tuple[list[str], list[int]]:
    """Return the ops in the order in which they are tried, up to the culprit, and the sizes of the queries.

    `printed` is what the crash of all of them left on standard error; None: they do not fail.
    """
    repro = Repro(torch.fx.symbolic_trace(chain), (torch.rand(4),))
    recording = observed_values(repro, limit=1 << 20)
    asked: list[int] = []

    def names(candidate: Repro) -> list[str]:
        return [node.name for node in candidate.graph.graph.nodes if node.op == "call_function"]

    def first_failing(candidates: Sequence[Repro | None]) -> int | None:
        built = [names(candidate) for candidate in candidates if candidate is not None]
        asked.extend(map(len, built))
        return next((index for index, ops in enumerate(built) if culprit in ops), None)

    def announced(candidate: Repro) -> Verdict | None:
        asked.append(len(names(candidate)))
        return None if printed is None else Verdict(Kind.CRASH, signal="SIGSEGV", stderr_tail=printed)

    found = []
    windows = windows_of(repro, recording)
    for unit, _ in failing_ones(repro, recording, windows, first_failing, announced, parts=2):
        found.append(unit.name)
        if unit.name == culprit:
            break
    return found, asked


def test_the_op_that_was_announced_last_is_tried_first() -> None:
    printed = "".join(f"torchrepro: working on target: aten.{op}.default\n" for op in ("sin", "cos", "tan"))
    assert tried("tan", f"{printed}Fatal Python error: Segmentation fault\n") == (["tan"], [6])


@pytest.mark.parametrize("printed", ["", "torchrepro: working on target: aten.sin.default\n"])
def test_without_a_name_or_with_a_wrong_one_it_is_bisected(printed: str) -> None:
    found, asked = tried("exp", printed)
    assert found[-1] == "exp"
    assert asked == [6, 3, 2, 1], "all of them, then halves"


def test_if_they_do_not_fail_next_to_one_another_none_is_tried() -> None:
    assert tried("exp", None) == ([], [6])


@pytest.mark.slow
def test_kernels_announce_their_ops() -> None:
    program = (
        "import torch\n"
        "from torchrepro.torch_api.inductor import ops_announced\n"
        "with ops_announced('now'):\n"
        "    torch.compile(lambda x, y: (torch.rsqrt(x), y.argmax()))(torch.rand(8), torch.rand(9))\n"
    )
    environ = {**os.environ, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}  # what it holds announces nothing
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)
    assert ended.returncode == 0, ended.stderr
    printed = [line for line in ended.stderr.splitlines() if line.startswith("now ")]
    assert len(printed) == 2
    assert {"target: aten.rsqrt.default", "target: aten.argmax.default"} <= {line[4:] for line in printed}
