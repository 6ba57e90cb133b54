"""Which calls are checked at level 4."""

from __future__ import annotations

import pytest

from torchrepro.catch import session as sampling
from torchrepro.catch.session import Sampler, Session
from torchrepro.catch.settings import WatchSettings


def taken(calls: int, **options: object) -> list[int]:
    sampler = Sampler(Session(WatchSettings(level=4).changed(**options)))
    return [call for call in range(calls) if sampler.take()]


def test_every_call_by_default() -> None:
    assert taken(5) == [0, 1, 2, 3, 4]


def test_one_of_n() -> None:
    assert taken(10, every=4) == [0, 4, 8]


def test_the_first_n() -> None:
    assert taken(10, first=2) == [0, 1]


def test_the_first_n_of_every_m() -> None:
    assert taken(20, every=5, first=2) == [0, 5]


def test_a_budget_limits_the_time_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(sampling.time, "monotonic", lambda: clock[0])
    session = Session(WatchSettings(level=4, budget=0.05))
    session.started = 0.0
    sampler = Sampler(session)
    checks = 0
    for _ in range(10_000):
        clock[0] += 0.01
        if sampler.take():
            checks += 1
            clock[0] += 0.5
            sampler.spent(0.5)
    share = checks * 0.5 / clock[0]
    assert 0.03 < share <= 0.0501


def test_the_budget_is_one_for_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(sampling.time, "monotonic", lambda: clock[0])
    session = Session(WatchSettings(level=4, budget=0.05))
    session.started = 0.0
    one, other = Sampler(session), Sampler(session)
    assert one.take()
    one.spent(10.0)
    assert not other.take()
