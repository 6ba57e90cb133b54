"""`torchrepro compare --check-ops`: what custom operators promise, on the values of the user's model."""

from __future__ import annotations

import pytest
from commands import CASES, answer, torchrepro

OPERATORS = CASES.parent / "operators"
BACKEND = ("--backend", "aot_eager_decomp_partition", "--check-ops")


@pytest.mark.slow
def test_an_operator_with_a_wrong_fake_kernel_is_blamed_and_not_the_compiler() -> None:
    ended = torchrepro("compare", "style_loss.py:build", *BACKEND, "--json", cwd=OPERATORS)
    found = answer(ended)
    assert ended.returncode == 1
    assert found["blamed"] == "operator fastops::gram"
    assert found["verdict"] == "run_error"
    (violation,) = found["operators"]["violations"]
    assert violation["contract"] == "stride"
    assert violation["registered"].startswith("fastops.py:")
    assert violation["source"].startswith("style_loss.py:")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_healthy_operator_is_named_and_not_accused() -> None:
    ended = torchrepro("compare", "style_loss.py:healthy", *BACKEND, cwd=OPERATORS)
    assert ended.returncode == 0
    assert "the custom operators do what they declare: fastops::honest_gram" in ended.stdout
