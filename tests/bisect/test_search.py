"""The search finds every change between neighbours it ran, and says "no change" only of a complete series."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchrepro.bisect.search import Change, changes_in, next_places

HISTORIES = st.lists(st.sampled_from(["pass", "fails", "other", None]), min_size=1, max_size=12)


def searched(
    history: list[str | None], *, jobs: int = 1, first: tuple[int, ...] = (), every: bool = False
) -> dict[int, str | None]:
    """Run a search on a history; of several that run at the same time, the last one started ends first."""
    states: dict[int, str | None] = {}
    running: list[int] = []
    while True:
        asked = next_places(states, len(history), running=running, first=first, every=every)
        for place, _ in zip(asked, range(jobs - len(running)), strict=False):
            assert place not in states
            assert place not in running
            running.append(place)
        if not running:
            return states
        place = running.pop()
        states[place] = history[place]


def test_a_single_regression_is_found_with_few_runs():
    history: list[str | None] = ["pass"] * 40 + ["fails"] * 24
    states = searched(history)
    assert changes_in(states) == [Change(39, 40)]
    assert len(states) <= 9


def test_a_setting_that_cannot_run_is_replaced_by_its_neighbours():
    states = searched(["pass", "pass", None, "fails", None])
    assert changes_in(states) == [Change(1, 3)]


def test_the_recorded_setting_shows_a_failure_that_both_ends_lack():
    history: list[str | None] = ["pass", "pass", "fails", "pass", "pass", "pass", "pass", "pass", "pass"]
    assert changes_in(searched(history, first=(2,))) == [Change(1, 2), Change(2, 3)]


@given(HISTORIES, st.integers(1, 4), st.booleans())
def test_every_change_found_is_between_neighbours(history: list[str | None], jobs: int, every: bool):
    states = searched(history, jobs=jobs, every=every)
    for change in changes_in(states):
        between = range(change.before + 1, change.after)
        assert all(place in states and states[place] is None for place in between)


@given(HISTORIES, st.integers(1, 4))
def test_no_change_is_said_only_of_a_complete_series(history: list[str | None], jobs: int):
    states = searched(history, jobs=jobs)
    if not changes_in(states):
        assert len(states) == len(history)


@given(HISTORIES, st.integers(1, 4))
def test_the_outermost_settings_that_can_run_are_run(history: list[str | None], jobs: int):
    ran = searched(history, jobs=jobs)
    able = [place for place, state in enumerate(history) if state is not None]
    assert all(place in ran for place in (able[:1] + able[-1:]))


@given(HISTORIES, st.integers(1, 4))
def test_all_runs_all(history: list[str | None], jobs: int):
    assert len(searched(history, jobs=jobs, every=True)) == len(history)
