"""A second opinion on capture: real bugs of Dynamo are not there when our own front end captures."""

from __future__ import annotations

import pytest
from commands import CASES, answer, torchrepro


@pytest.mark.slow
@pytest.mark.thorough  # two fresh processes for each case
@pytest.mark.parametrize("number", [192985, 197896])
def test_a_bug_of_dynamo_is_gone_with_our_own_front_end(number: int) -> None:
    words = (f"{CASES}/case_{number}.py:build", "--backend", "eager", "--json")
    assert answer(torchrepro("compare", *words))["verdict"] == "mismatch"
    assert answer(torchrepro("compare", *words, "--frontend", "torchrepro"))["verdict"] == "pass"
