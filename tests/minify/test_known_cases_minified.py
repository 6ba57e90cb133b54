"""Every failing program with a known answer, caught and minified by the command line as a user does it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.minify import ours
from benchmarks.minify.cases import all_cases, chosen
from benchmarks.minify.table import Row, goals

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1200)]

TIME_LIMIT = 600.0


@pytest.mark.parametrize("name", [case.name for case in all_cases()])
def test_a_known_failure_is_minified_to_its_ideal_size_and_verified(name: str, tmp_path: Path) -> None:
    (case,) = chosen([name])
    if not case.injected and not torch.__version__.startswith("2.13."):
        pytest.skip(f"a bug of torch 2.13, this is {torch.__version__}: it may be mended or another")
    measured = ours.measure(case, tmp_path, TIME_LIMIT)
    if case.fails and not measured.failed:
        pytest.skip("it does not fail on this machine")
    answers = goals(Row(case, measured, None))
    assert answers
    assert all(answers.values()), (answers, measured)
