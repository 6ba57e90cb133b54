"""The directory of a test: a plain name, another one for each test id."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from torchrepro.testing.artefacts import directory_for

OUT = Path("out")
IDS = st.text(max_size=400) | st.from_regex(
    r"tests/test_\w\.py::test_\w\[[-a-zA-Z0-9/.]{0,300}\]", fullmatch=True
)


@given(IDS)
def test_a_test_has_a_directory_that_every_file_system_can_name(test_id: str) -> None:
    directory = directory_for(OUT, test_id)
    assert directory.parent == OUT
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,120}", directory.name)
    assert directory == directory_for(OUT, test_id)


@given(IDS, IDS)
def test_two_tests_have_two_directories(one: str, other: str) -> None:
    assert (directory_for(OUT, one) == directory_for(OUT, other)) == (one == other)


def test_the_name_of_the_test_can_be_read() -> None:
    assert directory_for(OUT, "tests/test_a.py::test_sum[float32]").name.startswith(
        "tests-test_a.py-test_sum-float32"
    )
