"""What a person sees while a search runs: on a terminal of 80 columns, in a pipe, or nothing at all."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from torchrepro.cli import progress as shown
from torchrepro.cli.progress import Lines, Status


def progress(name: str, best: tuple[int, int, int], queries: int, known: int = 0) -> Mapping[str, Any]:
    return {
        "progress": {
            "pass": name,
            "start": [340, 12, 4096],
            "best": list(best),
            "queries": queries,
            "known": known,
        }
    }


def status(*messages: Mapping[str, Any]) -> Status:
    found = Status()
    for message in messages:
        found.take(message)
    return found


PASSES = {"passes": {"windows": "find the op that is wrong by itself", "shapes": "make dimensions smaller"}}


def test_it_says_which_pass_runs_what_it_does_and_how_far_it_is() -> None:
    text = "\n".join(status(PASSES, {"phase": "search"}, progress("windows", (3, 2, 64), 5, known=2)).lines())
    assert "windows: find the op that is wrong by itself" in text
    assert "340 ops, 12 inputs, 4,096 elements -> 3, 2, 64" in text
    assert "5 queries" in text
    assert "2 known already" in text
    assert "left unknown" in text


def test_each_phase_has_words_before_there_is_anything_to_count() -> None:
    assert "importing torch" in status().lines()[0]
    assert "running the baseline" in status({"phase": "establish"}).lines()[0]


def test_an_estimate_is_made_only_once_the_passes_have_been_seen_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = status(PASSES, {"phase": "search"}, progress("windows", (3, 2, 64), 1))
    now[0] += 4
    found.take(progress("shapes", (3, 2, 64), 2))
    assert found.estimate is None
    now[0] += 6
    found.take(progress("windows", (3, 2, 8), 3))
    assert found.estimate == pytest.approx(10)
    now[0] += 1
    assert found.estimate == pytest.approx(9)


def test_ctrl_c_says_what_happens_now_and_how_to_leave_at_once() -> None:
    assert "Ctrl-C again" in status({"phase": "search"}, {"stopping": True}).lines()[0]


def test_on_a_terminal_nothing_is_wider_than_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(shown, "error_console", lambda: console)
    with shown.progress(quiet=False) as screen:
        screen.show({"passes": {"windows": "word " * 40}})
        screen.show({"phase": "search"})
        screen.show(progress("windows", (10**6, 10**5, 10**9), 10**6))
        drawn = console.render_lines(screen)  # type: ignore[arg-type]
    assert len(drawn) == 4
    assert all(sum(len(segment.text.rstrip()) for segment in line) < 80 for line in drawn)


def test_in_a_pipe_there_is_a_line_for_an_improvement_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = io.StringIO()
    lines = Lines(Console(file=file, width=80))
    lines.show(progress("windows", (340, 12, 4096), 1))
    assert file.getvalue() == "", "the start is no improvement"
    for step in range(1, 40):
        now[0] += 0.1
        lines.show(progress("windows", (340 - step, 12, 4096), step))
    assert len(file.getvalue().splitlines()) == 4
    assert file.getvalue().startswith("torchrepro: 340 ops, 12 inputs, 4,096 elements -> 339, 12, 4,096")


def test_quiet_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    with shown.progress(quiet=True) as silent:
        silent.show(progress("windows", (1, 1, 1), 1))
    assert capfd.readouterr() == ("", "")


def test_counted_work_says_how_far_it_is_now_and_then_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, file = [time.monotonic()], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines(Console(file=file))
    for done in range(5):
        lines.show({"step": "replaying", "count": (done, 4)})
        now[0] += 6.0
    lines.show({"step": "generating code", "count": (0, 4)})
    assert file.getvalue().splitlines() == [
        "torchrepro: replaying: 0 of 4, 0 s",
        "torchrepro: replaying: 2 of 4, 12 s, about 12 s left",
        "torchrepro: replaying: 4 of 4, 24 s, about 0 s left",
        "torchrepro: generating code: 0 of 4, 30 s",
    ]
    assert "3 of 4" in status({"step": "replaying", "count": (3, 4)}).lines()
