"""Bundles, corpora and hunts of somebody else: none of their code runs, none of their links is followed."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.bundle.hostile_tools import healthy, with_lines, with_manifest
from torchrepro import load_bundle, save_bundle
from torchrepro.bundle.provenance import is_own
from torchrepro.corpus.index import Corpus
from torchrepro.hunt.buckets import BucketDirectory, Bucketed, Recognised, buckets_in
from torchrepro.hunt.directory import HuntDirectory
from torchrepro.hunt.filing import Gate, Usual
from torchrepro.hunt.generators.windows import source_at
from torchrepro.hunt.report import Told, report_on_hunt, report_with_its_torch
from torchrepro.hunt.sources import take_bundles
from torchrepro.nouns.errors import TorchReproError


def _running(bundle: Path, canary: Path) -> Path:
    """Write a stranger's bundle whose graph calls `posix.system`, and which asks to be trusted with that."""
    with_lines(bundle, f'y = user("posix:system")("touch {canary}")', "return (x,)")
    return with_manifest(bundle, lambda manifest: manifest.update(needs_trust=["posix.system"]))


def _own(path: Path) -> Path:
    theirs = load_bundle(healthy(path.with_name("theirs")))
    return save_bundle(replace(theirs, stranger=False), path)


def test_the_graph_of_a_strangers_bundle_is_no_source(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    assert source_at(_running(tmp_path / "bundle", canary)) is None
    assert not canary.exists()


@pytest.mark.parametrize("trusted", [(), ("bundle",)])
def test_a_hunt_starts_from_own_bundles_and_from_trusted_ones(
    trusted: tuple[str, ...], tmp_path: Path
) -> None:
    own, theirs = _own(tmp_path / "own"), healthy(tmp_path / "bundle")
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        for each in (own, theirs, _running(tmp_path / "hostile", tmp_path / "canary")):
            corpus.add(each)
    sources = tmp_path / "sources"
    sources.mkdir()
    notes = list(take_bundles([tmp_path / "corpus"], sources, trusted))
    taken = list(sources.iterdir())
    assert len(taken) == (2 if trusted else 1)
    assert all(is_own(each) and source_at(each) is not None for each in taken)
    told = "posix.system is not among" if trusted else "2 bundles of --corpus left out: not yours"
    assert len(notes) == 1
    assert told in notes[0]
    assert not (tmp_path / "canary").exists()


def test_a_hunt_that_was_copied_or_sent_is_not_continued(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    HuntDirectory(own).number(7)
    shutil.copytree(own, tmp_path / "copy")
    assert HuntDirectory(own).number(None) == 7
    with pytest.raises(TorchReproError, match="was not begun here by you"):
        HuntDirectory(tmp_path / "copy").number(None)
    (own / "hunt.json").write_text('{"seed": "7"}')
    with pytest.raises(TorchReproError, match="was not begun here by you"):
        HuntDirectory(own).number(7)


def _bucket(directory: Path, bucket: str) -> BucketDirectory:
    place = BucketDirectory(directory / "buckets" / "first")
    healthy(place.bundle)
    found = Bucketed(bucket=bucket, seed="s", recognised=Recognised.NEW, directory="/")
    (place.path / "bucket.json").write_bytes(msgspec.json.encode(found))
    place.gate.write_bytes(msgspec.json.encode(Gate((), Usual(0, 0, 0, 0, 1))))
    place.told.write_bytes(msgspec.json.encode(Told("t", "s", "c", "", "an issue", run=True)))
    return place


@pytest.mark.parametrize("link", ["hunt.report.html", "hunt.report.issues", ""])
def test_the_report_on_a_strangers_hunt_follows_no_link(link: str, tmp_path: Path) -> None:
    hunt, precious = tmp_path / "hunt", tmp_path / "precious"
    _bucket(hunt, "0123456789abcdef")
    precious.mkdir()
    (precious / "file").write_text("years of work")
    if link:
        (hunt / link).symlink_to(precious if link.endswith("issues") else precious / "file")
    refused = pytest.raises(TorchReproError, match="is a link") if link.endswith("issues") else nullcontext()
    with refused:
        rows = report_on_hunt(hunt, hunt / "hunt.report.html", run=False).rows
        assert [row.issue for row in rows] == ["hunt.report.issues/01-0123456789abcdef.md"]
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert (precious / "file").read_text() == "years of work"


@pytest.mark.parametrize("bucket", ["../../../owned", "a/b", "", "x" * 300])
def test_a_bucket_whose_fingerprint_is_a_path_is_none(bucket: str, tmp_path: Path) -> None:
    _bucket(tmp_path, bucket)
    assert list(buckets_in(tmp_path / "buckets")) == []


def test_the_report_on_a_strangers_hunt_does_not_run_the_interpreter_that_it_names(tmp_path: Path) -> None:
    hunt, canary = tmp_path / "hunt", tmp_path / "canary"
    _bucket(hunt, "0123456789abcdef")
    named = tmp_path / "python"
    named.write_text(f"#!/bin/sh\ntouch {canary}\n")
    named.chmod(0o755)
    about = {"seed": "7", "torch": "2.15.0", "python": str(named), "mark": "0" * 64}
    (hunt / "hunt.json").write_bytes(msgspec.json.encode(about))
    assert report_with_its_torch(hunt, tmp_path / "report.html", run=False).rows
    assert not canary.exists()
