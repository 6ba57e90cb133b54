"""The options of the watch, from texts, calls and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.catch.settings import (
    After,
    OnMismatch,
    WatchSettings,
    parse_share,
    parse_size,
    torch_aliases,
)
from torchrepro.nouns.errors import TorchReproError

SETTINGS = st.builds(
    WatchSettings,
    level=st.integers(1, 4),
    after=st.sampled_from(After),
    out=st.none() | st.just(Path("/somewhere/else")),
    whole=st.booleans(),
    every=st.integers(1, 1000),
    first=st.none() | st.integers(1, 1000),
    budget=st.none() | st.floats(0.001, 1.0),
    size_cap=st.integers(1, 1 << 40),
    on_mismatch=st.sampled_from(OnMismatch),
    limit=st.integers(1, 1000),
    rank_timeout=st.floats(0.5, 1000.0),
    run_id=st.text("abc-123", max_size=20),
)


@given(SETTINGS)
def test_another_process_is_given_the_same_settings(settings: WatchSettings) -> None:
    assert WatchSettings.from_environ(settings.to_environ()) == settings


def test_texts_are_read_as_a_person_writes_them() -> None:
    settings = WatchSettings().changed(level="4", budget="5%", size_cap="500M", whole="yes", after="dynamo")
    assert settings == WatchSettings(level=4, budget=0.05, size_cap=500 << 20, whole=True, after=After.DYNAMO)


def test_options_that_were_not_given_change_nothing() -> None:
    assert WatchSettings(level=3).changed(level=None, out=None) == WatchSettings(level=3)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"level": 5}, "no level 5"),
        ({"level": "high"}, "level is 'high'"),
        ({"after": "lunch"}, "after is 'lunch'"),
        ({"every": 0}, "every is 0"),
        ({"budget": "200%"}, "budget is 200%"),
        ({"size_cap": "big"}, "'big' is not a size"),
        ({"lvl": 1}, "no option 'lvl'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, object], fact: str) -> None:
    with pytest.raises(TorchReproError, match=fact):
        WatchSettings().changed(**options)


def test_the_words_of_torchs_own_tool_are_understood() -> None:
    environ = {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "4", "HOME": "/"}
    settings = WatchSettings().changed(**torch_aliases(environ))
    assert (settings.after, settings.level) == (After.AOT, 4)


@pytest.mark.parametrize(
    ("text", "size"), [("1G", 1 << 30), ("64KiB", 64 << 10), ("10", 10), ("1.5m", 3 << 19), ("2TB", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_shares() -> None:
    assert parse_share("5%") == parse_share("0.05") == 0.05
