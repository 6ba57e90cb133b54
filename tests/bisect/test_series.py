"""Options become a series: one has several values, the others hold for all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchrepro.bisect.series import Series, Wanted
from torchrepro.nouns.errors import TorchReproError

LISTED = [
    "2.15.0",
    "2.14.1",
    "2.14.0",
    "2.13.0+cpu",
    "2.13.0",
    "2.12.1",
    "2.12.0",
    "2.12.0rc3",
    "2.11.0",
    "2.10.0",
]


def series(**options: object) -> Series:
    return Wanted(**options).series(devices=False, versions=lambda unreleased: LISTED)  # type: ignore[arg-type]


def labels(**options: object) -> list[str]:
    return [setting.label for setting in series(**options).settings]


def test_a_range_has_every_release_in_it_oldest_first():
    assert labels(torch="2.11..2.14") == ["2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1"]


def test_a_range_ends_with_the_version_that_is_written_out():
    assert labels(torch="2.12.1..2.14.0") == ["2.12.1", "2.13.0", "2.14.0"]


def test_a_range_to_a_release_candidate_lists_those_too():
    assert labels(torch="2.11..2.12.0rc3") == ["2.11.0", "2.12.0rc3"]


def test_a_list_is_run_in_the_order_of_the_user_and_completely():
    found = series(torch="2.13.0,2.11.0")
    assert [setting.label for setting in found.settings] == ["2.13.0", "2.11.0"]
    assert not found.is_range


def test_versions_become_recipes_of_environments():
    assert [setting.recipe.torch for setting in series(torch="2.11.0,2.13.0").settings if setting.recipe] == [
        "torch==2.11.0",
        "torch==2.13.0",
    ]


def test_a_variable_varies_in_the_interpreter_of_this_process():
    found = series(environ=("X=1", "X=2,3"))
    assert [setting.environ for setting in found.settings] == [{"X": "1"}, {"X": "2"}, {"X": "3"}]
    assert {setting.python for setting in found.settings} == {Path(sys.executable)}
    assert all(setting.recipe is None for setting in found.settings)


def test_what_has_one_value_holds_for_all_settings():
    found = series(torch="2.12.1", triton="3.5.0,3.6.0", environ=("X=1",))
    assert found.axis == "Triton"
    assert [(one.recipe.torch, one.recipe.triton) for one in found.settings if one.recipe] == [
        ("torch==2.12.1", "3.5.0"),
        ("torch==2.12.1", "3.6.0"),
    ]
    assert {setting.environ["X"] for setting in found.settings} == {"1"}


def test_the_version_of_the_bundle_has_a_place_whatever_its_build():
    assert series(torch="2.11..2.14").place_of("2.13.0+cpu") == 3
    assert series(torch="2.11..2.12").place_of("2.13.0") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "nothing varies"),
        ({"torch": "2.11.0,2.12.0", "cxx": "g++,g++-0"}, "both vary"),
        ({"torch": "2.11.0"}, "nothing varies"),
        ({"torch": "two..three"}, "no version"),
        ({"torch": "2.14..2.11"}, "is empty"),
        ({"torch": "3.1..3.2"}, "no torch in"),
        ({"environ": ("X",)}, "no variable"),
        ({"cxx": "g++,no-such-compiler"}, "is no C.. compiler"),
        ({"wheels": (Path("a.whl"), Path("b.whl"))}, "does not exist"),
        ({"torch": "2.11.0,2.12.0", "more": ("not a requirement",)}, "no requirement"),
    ],
)
def test_wrong_options_are_errors_with_the_next_step(options: dict[str, object], said: str):
    with pytest.raises(TorchReproError, match=said) as raised:
        series(**options)
    assert raised.value.next_step
