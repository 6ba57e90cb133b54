"""How long a candidate may take follows from what the others took."""

from __future__ import annotations

from torchrepro.engine.oracle import Timeout
from torchrepro.nouns.verdict import Kind, Verdict


def test_a_multiple_of_the_original() -> None:
    short = Timeout.after(Verdict(Kind.MISMATCH, seconds=1.0))
    long = Timeout.after(Verdict(Kind.MISMATCH, seconds=100.0))
    assert 10 < short.limit < 60
    assert long.limit > 200


def test_a_hang_is_waited_for_no_longer_than_what_ends_suggests() -> None:
    patience = Timeout.after(Verdict(Kind.HANG, seconds=120.0))
    assert patience.limit < 20
    patience.learn(Verdict(Kind.PASS, seconds=15.0))
    assert patience.limit == 45
    patience.learn(Verdict(Kind.HANG, seconds=45.0))
    assert patience.limit == 45


def test_a_hang_is_never_waited_for_longer_than_the_original_was() -> None:
    patience = Timeout.after(Verdict(Kind.HANG, seconds=30.0))
    patience.learn(Verdict(Kind.PASS, seconds=29.0))
    assert patience.limit == 30
