"""Names are loaded when they are first used, so nothing but a test notices one that is no longer at home."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchrepro


@pytest.mark.parametrize("name", torchrepro.__all__)
def test_every_public_name_can_be_used(name: str) -> None:
    assert getattr(torchrepro, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(torchrepro.__file__).read_text())
    seen = {
        alias.asname
        for block in tree.body
        if isinstance(block, ast.If)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert seen | {"__version__"} == set(torchrepro.__all__)
