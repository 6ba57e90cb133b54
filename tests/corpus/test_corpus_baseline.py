from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.corpus.baseline import Accepted, compare, read_baseline, updated, write_baseline
from torchrepro.corpus.findings import Finding, Outcome, Result, State
from torchrepro.nouns.errors import TorchReproError

TODAY = datetime.date(2026, 11, 18)


def finding(state: State, signature: str = "mismatch", identity: str = "aa") -> Finding:
    outcome = Outcome(Result.FAILS, signature)
    return Finding(identity, "name", "bucket", state, signature, "mismatch", (outcome,))


def test_a_failure_that_was_fixed_has_regressed():
    seen = compare(finding(State.STILL_FAILS), Accepted("aa", State.FIXED), TODAY)
    assert (seen.state, seen.accepted) == (State.REGRESSED, False)


def test_a_known_failure_is_accepted_until_its_entry_expires():
    entry = Accepted("aa", State.STILL_FAILS, "c0ffee", "https://example.org/1", "2026-11-18", "mismatch")
    assert compare(finding(State.STILL_FAILS), entry, TODAY).accepted
    late = compare(finding(State.STILL_FAILS), entry, TODAY + datetime.timedelta(1))
    assert (late.accepted, late.expired, late.issue) == (False, "2026-11-18", "https://example.org/1")


def test_a_known_failure_with_another_signature_fails_otherwise():
    entry = Accepted("aa", State.STILL_FAILS, signature="crash | SIGSEGV")
    assert compare(finding(State.STILL_FAILS), entry, TODAY).state is State.FAILS_OTHERWISE


def test_what_cannot_run_is_never_accepted():
    assert not compare(finding(State.CANNOT_RUN), Accepted("aa", State.CANNOT_RUN), TODAY).accepted


def test_update_writes_improvements_alone():
    known = {"aa": Accepted("aa", State.STILL_FAILS, "old", "issue", "2027-01-01", "mismatch")}
    found = [
        finding(State.FIXED, "pass"),
        finding(State.REGRESSED, identity="bb"),
        finding(State.CANNOT_RUN, identity="cc"),
    ]
    improved = list(updated(known, found, "1" * 40, everything=False))
    assert [(line.id, line.state, line.issue) for line in improved] == [("aa", State.FIXED, "issue")]
    everything = list(updated(known, found, "1" * 40, everything=True))
    assert [(line.id, line.state) for line in everything] == [("aa", State.FIXED), ("bb", State.STILL_FAILS)]


def test_what_could_not_run_keeps_its_line():
    known = {"aa": Accepted("aa", State.STILL_FAILS, "old", "issue", "", "mismatch")}
    assert list(updated(known, [finding(State.CANNOT_RUN)], "new", everything=True)) == [known["aa"]]


WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), max_size=8).filter(
    lambda word: word not in ("-",)
)


@given(
    st.dictionaries(
        st.text("0123456789abcdef", min_size=4, max_size=20),
        st.tuples(
            st.sampled_from(list(State)),
            WORD,
            WORD,
            st.dates().map(str) | st.just(""),
            st.lists(WORD).map(" ".join),
        ),
    )
)
def test_a_written_file_is_sorted_and_is_read_as_it_was(lines: dict[str, tuple[State, str, str, str, str]]):
    import tempfile

    given_lines = {key: Accepted(key, *fields) for key, fields in lines.items()}
    normal = {
        key: Accepted(
            key, each.state, each.commit, each.issue, each.expires, " ".join(each.signature.split())
        )
        for key, each in given_lines.items()
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "baseline.txt"
        write_baseline(path, updated(given_lines, [], "", everything=False))
        body = [line for line in path.read_text().split("\n") if line and line[0] != "#"]
        assert body == sorted(body, key=lambda line: line.split(" ")[0])
        expected = {key: each for key, each in normal.items() if each.signature != "-"}
        assert {key: each for key, each in read_baseline(path).items() if key in expected} == expected


@pytest.mark.parametrize("line", ["aa", "aa no-such-state", "aa fixed - - tomorrow", "\x00"])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str):
    (tmp_path / "baseline.txt").write_text(f"# head\n{line}\n")
    with pytest.raises(TorchReproError, match=r"baseline\.txt:2"):
        read_baseline(tmp_path / "baseline.txt")
