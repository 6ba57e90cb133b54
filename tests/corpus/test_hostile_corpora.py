"""A corpus that somebody else has made: links, ids that are paths, an index with a mind of its own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from corpora import FAILS, write_bundle

from torchrepro.corpus.code_diff import sides_of
from torchrepro.corpus.findings import Finding, Outcome, Result, State
from torchrepro.corpus.index import Corpus, Recorded
from torchrepro.nouns.errors import TorchReproError


@pytest.fixture
def corpus(tmp_path: Path, template: Path) -> Path:
    """A corpus with one bundle, closed."""
    with Corpus(tmp_path / "corpus", create=True) as opened:
        opened.add(write_bundle(tmp_path / "bundle", 1, template))
    return tmp_path / "corpus"


def _change_index(corpus: Path, *statements: str) -> None:
    with sqlite3.connect(corpus / "index.sqlite") as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            database.execute(statement)
    database.close()


@pytest.mark.parametrize("name", ["bundles", "code", "runs", "index.sqlite", "index.sqlite-wal"])
def test_no_link_in_it_is_followed(name: str, corpus: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    place = corpus / name
    if place.is_dir():
        place.rename(elsewhere)
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    with pytest.raises(TorchReproError, match="is a link"):
        Corpus(corpus)
    assert elsewhere.is_dir() == (name == "bundles")


def test_a_bundle_that_is_a_link_is_neither_read_nor_written_to(corpus: Path, tmp_path: Path) -> None:
    (home,) = (corpus / "bundles").iterdir()
    home.rename(tmp_path / "elsewhere")
    home.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "bundle" / "graph.py").write_text("damaged")
    with Corpus(corpus) as opened:
        for action in (
            lambda: opened.add(tmp_path / "bundle"),
            lambda: opened.remove(home.name),
            lambda: opened.record(Recorded("1", home.name, "run", 0, "h", "t", "2", "", FAILS)),
        ):
            with pytest.raises(TorchReproError, match="is a link"):
                action()
        opened.rebuild()
        assert opened.count() == 0
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["bundle", "entry.json"]


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE bundles SET id = '../../precious'",),
        ("UPDATE bundles SET id = 'ABCDEF0123456789abcd'",),
        ("UPDATE bundles SET name = x'00ff'",),
        ("UPDATE bundles SET seconds = 'long'",),
        ("CREATE TABLE more (x)",),
        ("CREATE TRIGGER t AFTER INSERT ON replays BEGIN DELETE FROM bundles; END",),
        (
            "ALTER TABLE bundles RENAME TO hidden",
            "CREATE VIEW bundles AS SELECT * FROM hidden",
        ),
    ],
)
def test_an_index_that_is_not_as_we_write_it_is_made_again(
    statements: tuple[str, ...], corpus: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    _change_index(corpus, *statements)
    (home,) = (corpus / "bundles").iterdir()
    with Corpus(corpus) as opened:
        assert any("is made again from the bundles" in note for note in opened.notes)
        assert [entry.id for entry in opened.entries()] == [home.name]
        opened.remove("bundle")
    assert precious.is_dir()
    assert not home.exists()


def test_a_replay_in_the_index_that_is_none_is_an_error_with_a_next_step(corpus: Path) -> None:
    (home,) = (corpus / "bundles").iterdir()
    with Corpus(corpus) as opened:
        opened.record(Recorded("1", home.name, "run", 0, "host", "tools", "2", "", FAILS))
    _change_index(corpus, "UPDATE replays SET replayed = '[1]'")
    with Corpus(corpus) as opened, pytest.raises(TorchReproError, match=r"damaged.*remove its index"):
        opened.replays("run", home.name, 0)


def test_the_code_of_a_merged_replay_is_no_path(corpus: Path, tmp_path: Path) -> None:
    (corpus / "code").mkdir()
    (tmp_path / "secret.txt").write_text("a secret")
    os.mkfifo(corpus / "code" / "cafe.txt")
    outcomes = tuple(Outcome(Result.FAILS, code=code) for code in ("../../secret", "cafe"))
    finding = Finding("a", "a", "b", State.STILL_FAILS, "", "", outcomes)
    with Corpus(corpus) as opened:
        assert sides_of(opened, finding) == ([], [])


def test_merging_one_takes_nothing_from_its_links(corpus: Path, tmp_path: Path, template: Path) -> None:
    own, secret = tmp_path / "own", tmp_path / "secret.jsonl"
    secret.write_text(json.dumps({"id": "s"}))
    (home,) = (corpus / "bundles").iterdir()
    (corpus / "runs").mkdir()
    (corpus / "runs" / "1.jsonl").symlink_to(secret)
    (home / "replays.jsonl").symlink_to(secret)
    (home / "bundle" / "more").symlink_to(secret)
    shutil.rmtree(own, ignore_errors=True)
    with Corpus(own, create=True) as opened:
        assert opened.merge(corpus) == (1, 0)
        bundle = opened.bundle(home.name)
    assert not (bundle / "more").exists()
