"""What an error, a stack or a kernel's name says decides which op is tried first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from torchrepro.cut.hints import suspects
from torchrepro.cut.record_values import observed_values
from torchrepro.cut.windows import windows_of
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Raised, Verdict


def model(x: torch.Tensor) -> torch.Tensor:
    y = F.gelu(torch.sin(x)).view(2, 8)
    return F.layer_norm(torch.relu(y), (8,)) @ y.t()


@pytest.fixture(scope="module")
def repro() -> Repro:
    return Repro(torch.fx.symbolic_trace(model), (torch.randn(4, 4),))


def named(repro: Repro, verdict: Verdict) -> list[str]:
    recording = observed_values(repro, limit=1 << 20)
    return [window.name for window in suspects(windows_of(repro, recording), verdict, repro, recording)]


def raised(message: str) -> Verdict:
    return Verdict(Kind.COMPILE_ERROR, summary=message, raised=Raised("LoweringException", message))


def test_the_target_of_a_lowering_error(repro: Repro) -> None:
    assert named(repro, raised("oops\n  target: aten.relu.default\n  args[0]: ..."))[0] == "relu"


def test_an_op_that_another_is_made_of(repro: Repro) -> None:
    assert named(repro, raised("oops\n  target: aten.erf.default"))[0] == "gelu"
    assert named(repro, raised("oops\n  target: aten.rsqrt.default"))[0] == "layer_norm"


def test_a_kernel_in_the_stack_of_a_crash(repro: Repro, tmp_path: Path) -> None:
    generated = tmp_path / f"c{'a' * 50}.py"
    generated.write_text("import torch\ncpp_fused_native_layer_norm_relu_1(arg0, buf0)\n")
    tail = f'Fatal Python error: Segmentation fault\n  File "{generated}", line 2 in call\n'
    found = named(repro, Verdict(Kind.CRASH, signal="SIGSEGV", stderr_tail=tail))
    assert set(found[:2]) == {"relu", "layer_norm"}


def test_what_is_fused_with_a_product_comes_before_the_product() -> None:
    def fused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, weight))

    repro = Repro(torch.fx.symbolic_trace(fused), (torch.randn(4, 4), torch.randn(4, 4)))
    kernel = "SyntaxError in triton_poi_fused_addmm_linear_mm_relu_0"
    assert named(repro, raised(kernel)) == ["relu", "linear"]


def test_a_node_that_was_worked_on_when_it_hung(repro: Repro) -> None:
    tail = "torchrepro: working on target: aten.sin.default\n"
    assert named(repro, Verdict(Kind.HANG, stderr_tail=tail))[0] == "sin"


def test_nothing_said_nothing_suspected(repro: Repro) -> None:
    assert named(repro, Verdict(Kind.CRASH, signal="SIGSEGV")) == []


def test_of_the_ops_that_were_announced_only_the_last_ones_count(repro: Repro) -> None:
    announced = "torchrepro: working on target: aten.relu.default\n"
    last = (
        "torchrepro: working on target: aten.rsqrt.default target: aten.mul.Tensor target: aten.sub.Tensor\n"
    )
    tail = f"{announced}{last}Fatal Python error: Segmentation fault\n"
    found = named(repro, Verdict(Kind.CRASH, signal="SIGSEGV", stderr_tail=tail))
    assert found[0] == "layer_norm", "most of what was announced is part of it"
    assert "relu" not in found
