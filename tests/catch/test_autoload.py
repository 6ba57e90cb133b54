"""Doing something when a module is imported, and not before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrepro.catch.autoload import when_imported


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "watched_for_a_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "watched_for_a_test"
    sys.modules.pop("watched_for_a_test", None)


def test_the_action_waits_for_the_import(module_name: str) -> None:
    seen: list[int] = []
    when_imported(module_name, lambda module: seen.append(module.value))
    assert seen == []
    assert module_name not in sys.modules
    __import__(module_name)
    assert seen == [1]


def test_a_module_that_is_there_is_acted_on_at_once(module_name: str) -> None:
    __import__(module_name)
    seen: list[int] = []
    when_imported(module_name, lambda module: seen.append(module.value))
    assert seen == [1]


def test_an_action_may_ask_for_another(module_name: str) -> None:
    seen: list[str] = []

    def first(module: object) -> None:
        seen.append("first")
        when_imported(module_name, lambda module: seen.append("second"))

    when_imported(module_name, first)
    __import__(module_name)
    assert seen == ["first", "second"]


def test_several_actions_keep_their_order(module_name: str) -> None:
    seen: list[int] = []
    for number in range(3):
        when_imported(module_name, lambda module, number=number: seen.append(number))
    __import__(module_name)
    assert seen == [0, 1, 2]
