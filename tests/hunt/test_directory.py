"""The log of a hunt: what was judged, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrepro.hunt.directory import NO_PROGRAM, SORTED, HuntDirectory, Judged, Tally
from torchrepro.nouns.errors import TorchReproError


def test_a_line_that_a_killed_hunt_has_not_finished_is_ignored(tmp_path: Path) -> None:
    directory = HuntDirectory(tmp_path)
    directory.append([Judged("operators-1", "pass"), Judged("operators-2", "mismatch", bundle="b")])
    with directory.log.open("ab") as log:
        log.write(b'{"seed":"operators-3","ki')
    assert [each.seed for each in directory.judged()] == ["operators-1", "operators-2"]


def test_a_tally_counts_programs_failures_and_what_is_not_sorted_yet() -> None:
    tally = Tally.of(
        [
            Judged("operators-1", "pass"),
            Judged("operators-2", NO_PROGRAM),
            Judged("operators-3", "mismatch", bundle="b3"),
            Judged("operators-4", "crash", bundle="b4"),
            Judged("operators-3", SORTED, bucket="ff"),
        ]
    )
    assert tally.programs == 3
    assert list(tally.failures) == ["operators-3", "operators-4"]
    assert tally.buckets == {"ff": ["operators-3"]}
    assert [each.seed for each in tally.unsorted] == ["operators-4"]


def test_a_hunt_keeps_its_number_and_refuses_a_directory_with_something_else(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    own.mkdir()
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    assert HuntDirectory(own).number(0xB0) == 0xB0
    assert HuntDirectory(own).number(None) == 0xB0
    with pytest.raises(TorchReproError, match=r"holds something else \(thesis.tex\)"):
        HuntDirectory(foreign).number(None)


def test_a_hunt_belongs_to_one_torch(tmp_path: Path) -> None:
    directory = HuntDirectory(tmp_path)
    directory.number(0xB0)
    for _ in range(2):
        directory.belong_to("2.13.0", "aaaaaaaa", "/envs/a/bin/python")
    with pytest.raises(TorchReproError, match=r"hunt with torch 2\.13\.0 \(aaaaaaa\), and this") as raised:
        directory.belong_to("2.13.0", "bbbbbbbb", "/envs/b/bin/python")
    assert "--python /envs/a/bin/python" in raised.value.next_step
    assert directory.number(None) == 0xB0
    known = directory.known
    assert known is not None
    assert known.python == "/envs/a/bin/python"
