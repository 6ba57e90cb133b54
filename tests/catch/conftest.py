"""Each test of the watch starts with nothing compiled and nothing watched."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from torchrepro.catch.session import current_session, disable
from torchrepro.catch.settings import LAUNCHED

# The failures are meant: no last words about them at the end of the tests.
os.environ[LAUNCHED] = "1"


@pytest.fixture(autouse=True)
def nothing_compiled_nothing_watched() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    while current_session() is not None:
        disable()
    torch._dynamo.reset()
