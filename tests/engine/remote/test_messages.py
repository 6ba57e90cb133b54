"""Messages arrive as they were sent, however the pipe cuts them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.remote.messages import (
    Blob,
    Cancel,
    Candidate,
    Ended,
    Forget,
    Frames,
    Piece,
    Request,
    send,
)
from torchrepro.nouns.errors import HarnessError

PIECES = st.builds(Piece, content=st.binary(max_size=50), digest=st.text(max_size=5))
MESSAGES = st.one_of(
    st.builds(Blob, digest=st.text(max_size=5), content=st.binary(max_size=2000)),
    st.builds(Forget, digest=st.text(max_size=5)),
    st.builds(Cancel, number=st.integers(0, 1 << 60)),
    st.builds(
        Candidate,
        number=st.integers(0, 1 << 60),
        job=st.text(max_size=5),
        payload=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False) | st.none() | st.booleans()),
        time_limit=st.floats(0, 1e6),
        members=st.dictionaries(st.text(max_size=5), st.lists(PIECES, max_size=3), max_size=3),
    ),
)


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_messages_arrive_complete_and_in_order_however_the_pipe_cuts_them(
    messages: list[Request], cuts: list[int]
) -> None:
    sent, sending = os.pipe()
    for message in messages:
        send(sending, message)
    os.close(sending)
    with os.fdopen(sent, "rb") as file:
        content = file.read()
    reading, writing = os.pipe()
    frames, got = Frames(reading, Request), []
    try:
        while content:
            cut = cuts[len(content) % len(cuts)]
            os.write(writing, content[:cut])
            content = content[cut:]
            assert frames.read()
            while (message := frames.next()) is not None:
                got.append(message)
        os.close(writing)
        assert not frames.read()
    finally:
        os.close(reading)
    assert got == messages


def test_an_outcome_keeps_what_errors_are_made_of() -> None:
    reading, writing = os.pipe()
    outcome = Outcome(
        result={"error": float("inf"), "kind": "mismatch"}, seconds=1.5, output_tail="\udcff"[:0]
    )
    send(writing, Ended(7, outcome))
    frames = Frames(reading, Ended)
    frames.read()
    assert frames.next() == Ended(7, outcome)
    os.close(reading)
    os.close(writing)


def test_a_length_that_no_message_has_is_an_error_and_takes_no_memory() -> None:
    reading, writing = os.pipe()
    os.write(writing, (1 << 62).to_bytes(8, "little"))
    frames = Frames(reading, Request)
    frames.read()
    with pytest.raises(HarnessError, match="bytes"):
        frames.next()
    os.close(reading)
    os.close(writing)
