"""Every real failure with a known stage: what `torchrepro locate` names inside it, and what it advises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import CASES, answer, torchrepro

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1200)]

# The stage, a word of the part's name (empty: no switch is known), and one of the workaround's line.
KNOWN = {
    "case_191499": ("backend", "cpp.simdlen", "cpp.simdlen"),
    "case_196570": ("backend", "constant_and_index_propagation", "constant_and_index_propagation"),
    "case_198131": ("backend", "remove_noop_ops", "disabled_passes"),
    "case_197067": ("aot", "", "backend='eager'"),
    "case_194706": ("backend", "cpp.enable_loop_tail_vec", "cpp.enable_loop_tail_vec"),
    "case_195422": ("aot", "", "backend='eager'"),
    "case_192985": ("capture", "", "torch.compiler.disable"),
    "case_197896": ("capture", "", "torch.compiler.disable"),
    "case_179804": ("aot", "backward_pass_autocast", "backward_pass_autocast"),
    "case_188217": ("backend", "fractional_max_pool2d", "fallback_by_default"),
    "case_fuzz_acosh": ("backend", "cpp.simdlen", "cpp.simdlen"),
    "case_fuzz_softshrink_nan": ("backend", "constant_fold_uniform_value", "joint_graph_constant_folding"),
    "case_185246": ("decomposition", "aten.bernoulli", "backend='aot_eager'"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_guilty_part_of_a_known_failure_is_named(name: str, tmp_path: Path) -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"a bug of torch 2.13, this is {torch.__version__}: it may be mended or another")
    words = ("locate", f"{CASES / name}.py:build", "--json", "--out", tmp_path / "located")
    found: dict[str, Any] = answer(torchrepro(*words))
    if not found["kind"] or found["kind"] == "pass":
        pytest.skip("it does not fail on this machine")
    stage, part, workaround = KNOWN[name]
    assert found["stage"] == stage
    assert part in (found["pass"] or "")
    assert found["workaround_verified"]
    assert workaround in found["workaround"]["code"]
