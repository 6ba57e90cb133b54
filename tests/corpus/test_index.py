from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import FAILS, write_bundle

from torchrepro.corpus.index import Corpus, Recorded, bundles_at, content_digest
from torchrepro.nouns.errors import TorchReproError

ADD = "import sys; from pathlib import Path; from torchrepro.corpus.index import Corpus\n"
ADD += (
    "with Corpus(Path(sys.argv[1]), create=True) as corpus:\n    [corpus.add(Path(p)) for p in sys.argv[2:]]"
)


def recorded(bundle: str, number: int = 0) -> Recorded:
    return Recorded(f"{number:04}", bundle, "run", 0, "host", "tools", "2.13.0", "1" * 40, FAILS)


def test_the_same_content_is_kept_once_as_a_directory_and_as_a_zip(tmp_path: Path, template: Path):
    bundle = write_bundle(tmp_path / "a", 1, template)
    packed = tmp_path / "b.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for member in bundle.iterdir():
            archive.write(member, member.name)
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        first, new = corpus.add(bundle)
        second, again = corpus.add(packed)
        assert (new, again) == (True, False)
        assert first.id == second.id
        assert corpus.count() == 1
        assert content_digest(corpus.bundle(first.id)) == first.id


def test_several_processes_add_at_once_and_nothing_is_lost(tmp_path: Path, template: Path):
    bundles = [write_bundle(tmp_path / f"b{number}", number, template) for number in range(24)]
    shares = [bundles[start::4] + bundles[:3] for start in range(4)]
    started = [subprocess.Popen([sys.executable, "-c", ADD, tmp_path / "corpus", *share]) for share in shares]
    assert [process.wait(120) for process in started] == [0, 0, 0, 0]
    with Corpus(tmp_path / "corpus") as corpus:
        assert corpus.count() == 24
        assert not list((tmp_path / "corpus" / "bundles").glob(".*"))


@pytest.mark.parametrize("damage", ["lost", "torn", "garbage"])
def test_a_damaged_index_is_made_again_from_the_bundles(tmp_path: Path, template: Path, damage: str):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entries = [corpus.add(write_bundle(tmp_path / f"b{each}", each, template))[0] for each in range(3)]
        corpus.record(recorded(entries[0].id))
    index = tmp_path / "corpus" / "index.sqlite"
    for path in (tmp_path / "corpus").glob("index.sqlite-*"):
        path.unlink()
    if damage == "lost":
        index.unlink()
    elif damage == "torn":
        index.write_bytes(index.read_bytes()[:5000])
    else:
        index.write_bytes(b"no database" * 1000)
    with Corpus(tmp_path / "corpus") as corpus:
        assert sorted(entry.id for entry in corpus.entries()) == sorted(entry.id for entry in entries)
        assert corpus.replays("run", entries[0].id, 0) == [FAILS]


def test_a_half_written_replay_of_a_killed_process_is_ignored(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entry, _ = corpus.add(write_bundle(tmp_path / "b", 1, template))
        corpus.record(recorded(entry.id))
    with (tmp_path / "corpus" / "bundles" / entry.id / "replays.jsonl").open("ab") as file:
        file.write(b'{"id": "0002", "bund')
    (tmp_path / "corpus" / "index.sqlite").unlink()
    with Corpus(tmp_path / "corpus") as corpus:
        assert len(corpus.replays("run", entry.id, 0)) == 1


def test_a_removed_bundle_is_gone_from_the_directory_too(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entry, _ = corpus.add(write_bundle(tmp_path / "b", 1, template))
        corpus.remove(entry.id[:8])
        assert corpus.count() == 0
        assert not corpus.bundle(entry.id).exists()
        with pytest.raises(TorchReproError, match="no bundle"):
            corpus.entry(entry.id)


def test_nothing_names_no_bundle(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        corpus.add(write_bundle(tmp_path / "b", 1, template))
        with pytest.raises(TorchReproError, match="no bundle"):
            corpus.remove("")


def test_an_index_of_another_version_is_made_again(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entry, _ = corpus.add(write_bundle(tmp_path / "b", 1, template))
        corpus.record(recorded(entry.id))
        corpus.database.execute("PRAGMA user_version = 1")
    with Corpus(tmp_path / "corpus") as corpus:
        assert [each.id for each in corpus.entries()] == [entry.id]
        assert corpus.replays("run", entry.id, 0) == [FAILS]
        assert "another version" in corpus.notes[0]


def test_an_entry_that_is_lost_follows_from_its_bundle(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entry, _ = corpus.add(write_bundle(tmp_path / "b", 1, template))
        (corpus.bundle(entry.id).parent / "entry.json").write_text("torn")
        corpus.rebuild()
        assert corpus.entry(entry.id) == replace(entry, name=entry.id)


def test_corpora_of_shards_are_merged_without_duplicates(tmp_path: Path, template: Path):
    bundles = [write_bundle(tmp_path / f"b{number}", number, template) for number in range(3)]
    numbers = itertools.count()
    for name, share in (("one", bundles[:2]), ("two", bundles[1:])):
        with Corpus(tmp_path / name, create=True) as corpus:
            for bundle in share:
                corpus.record(recorded(corpus.add(bundle)[0].id, next(numbers)))
    shutil.copytree(tmp_path / "one", tmp_path / "all")
    with Corpus(tmp_path / "all") as corpus:
        assert corpus.merge(tmp_path / "two") == (1, 2)
        assert corpus.merge(tmp_path / "two") == (0, 0)
        assert corpus.count() == 3


def test_a_directory_with_something_else_is_not_taken_for_a_corpus(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TorchReproError, match="something else"):
        Corpus(tmp_path, create=True)
    with pytest.raises(TorchReproError, match="is no corpus"):
        Corpus(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_links_in_a_strangers_directory_are_not_followed(tmp_path: Path, template: Path):
    bundle = write_bundle(tmp_path / "b", 1, template)
    (tmp_path / "secret").write_text("secret")
    (bundle / "values.pt").symlink_to(tmp_path / "secret")
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        try:
            entry, _ = corpus.add(bundle)
        except TorchReproError:
            return
        copied = corpus.bundle(entry.id) / "values.pt"
        assert not copied.exists()


def test_a_strangers_corpus_can_name_no_other_place(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "theirs", create=True) as theirs:
        entry, _ = theirs.add(write_bundle(tmp_path / "b", 1, template))
    bundles = tmp_path / "theirs" / "bundles"
    (bundles / entry.id).rename(bundles / ("0" * 20))  # not what its id says
    (bundles / "evil").symlink_to(tmp_path)
    (tmp_path / "theirs" / "index.sqlite").write_bytes(b"never opened")
    with Corpus(tmp_path / "mine", create=True) as mine:
        assert mine.merge(tmp_path / "theirs") == (0, 0)
        assert mine.count() == 0


def test_a_replay_after_a_half_written_one_is_kept(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entry, _ = corpus.add(write_bundle(tmp_path / "b", 1, template))
        with (tmp_path / "corpus" / "bundles" / entry.id / "replays.jsonl").open("ab") as file:
            file.write(b'{"id": "0001", "bund')
        corpus.record(recorded(entry.id))
        assert [each.replayed for each in corpus.all_replays(entry.id)] == [FAILS]


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_adding_a_bundle_again_replaces_a_damaged_copy(tmp_path: Path, template: Path, damage: str):
    bundle = write_bundle(tmp_path / "b", 1, template)
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        entry, _ = corpus.add(bundle)
        if damage == "torn":
            (corpus.bundle(entry.id) / "graph.py").write_text("torn")
        else:
            shutil.rmtree(corpus.bundle(entry.id))
        assert corpus.add(bundle) == (entry, False)
        assert content_digest(corpus.bundle(entry.id)) == entry.id
        assert ["damaged" in note for note in corpus.notes] == [True]


def test_a_damaged_bundle_of_another_corpus_does_not_stop_a_merge(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "theirs", create=True) as theirs:
        entries = [theirs.add(write_bundle(tmp_path / f"b{each}", each, template))[0] for each in range(3)]
        shutil.rmtree(theirs.bundle(entries[0].id))
        (theirs.bundle(entries[1].id) / "manifest.json").write_text("torn")
    with Corpus(tmp_path / "mine", create=True) as mine:
        assert mine.merge(tmp_path / "theirs") == (1, 0)
        assert len(mine.notes) == 2


def test_a_directory_of_bundles_stands_for_them_and_one_of_minify_for_itself(tmp_path: Path, template: Path):
    found = [write_bundle(tmp_path / "out" / name, number, template) for number, name in enumerate("ab")]
    (tmp_path / "out" / "summary.json").touch()
    write_bundle(tmp_path / "b.minified" / "minimal", 3, template)
    assert bundles_at(tmp_path / "out") == found
    for whole in (found[0], tmp_path / "b.minified", tmp_path / "missing", tmp_path):
        assert bundles_at(whole) == [whole]
