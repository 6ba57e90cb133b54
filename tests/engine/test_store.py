"""A search that is killed at any moment leaves every verdict that it knew, and the best, whole."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchrepro.bundle.load import load_bundle
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.search.run_directory import Identity, RunDirectory
from torchrepro.engine.store import SqliteStore, store_knowing
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import (
    Blame,
    Comparison,
    Difference,
    Kind,
    LeafComparison,
    Raised,
    Stage,
    Verdict,
)


def store_in(directory: Path) -> SqliteStore:
    return SqliteStore(
        directory / "verdicts.sqlite",
        best_to=directory / "best",
        also_seen_to=directory / "also_seen",
    )


def repro_of(size: int) -> Repro:
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    return Repro(graph, (torch.arange(float(size)),))


def telling_verdict(number: int = 0) -> Verdict:
    """One with everything in it that JSON finds hard."""
    leaf = LeafComparison(
        "out[0]",
        Difference.VALUE,
        blamed=Blame.COMPILED,
        index=(1, 2),
        ref_value="nan",
        max_abs=float("inf"),
        max_rel=0.1 + number,
        rmse_ref=None,
        rmse_res=1e-300,
    )
    return Verdict(
        Kind.MISMATCH,
        Stage.BACKEND,
        summary=f"number {number}: ü \x00",
        raised=Raised("builtins.ValueError", "line\nline", "Traceback"),
        signal="SIGSEGV",
        comparison=Comparison((leaf,), ("a note",)),
        notes=("one", "two"),
        stderr_tail="\N{SNOWMAN}",
        seconds=0.1,
    )


def in_a_child(work: Callable[[], None]) -> int:
    """The process that does it, forked: importing torch again would take seconds."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def test_a_verdict_comes_back_exactly(tmp_path: Path) -> None:
    half = replace(telling_verdict(), stderr_tail="\ud800, half a character")
    with store_in(tmp_path) as store:
        store.remember("key", telling_verdict())
        store.remember("half", half)
    again = store_in(tmp_path)
    assert again.verdict("key") == telling_verdict()
    assert again.verdict("half") == half
    assert again.verdict("other") is None
    assert not again.notes


def test_a_nan_comes_back_as_a_nan(tmp_path: Path) -> None:
    leaf = LeafComparison("out", Difference.NON_FINITE, max_abs=float("nan"))
    store_in(tmp_path).remember("key", Verdict(Kind.NON_FINITE, comparison=Comparison((leaf,))))
    found = store_in(tmp_path).verdict("key")
    assert found is not None
    assert found.comparison is not None
    assert found.comparison.leaves[0].max_abs != found.comparison.leaves[0].max_abs


def test_the_best_comes_back_with_its_verdict(tmp_path: Path) -> None:
    assert store_in(tmp_path).best() is None
    with store_in(tmp_path) as store:
        store.keep_best(repro_of(9), telling_verdict(1))
        store.keep_best(repro_of(4), telling_verdict(2))
    found = store_in(tmp_path).best()
    assert found is not None
    assert canonical_key(found[0]) == canonical_key(repro_of(4))
    assert found[1] == telling_verdict(2)


def test_a_large_best_is_not_written_all_the_time(tmp_path: Path) -> None:
    large = Repro(repro_of(1).graph, (torch.randn(4 << 20),))
    store = store_in(tmp_path)
    started = time.monotonic()
    store.keep_best(large, telling_verdict(0))
    once = time.monotonic() - started
    started = time.monotonic()
    for number in range(1, 40):
        store.keep_best(large, telling_verdict(number))
    assert time.monotonic() - started < 4 * once + 0.5
    store.close()
    found = store_in(tmp_path).best()
    assert found is not None
    assert found[1] == telling_verdict(39)


def test_a_best_that_was_written_but_not_put_in_place_is_found(tmp_path: Path) -> None:
    """Where two directories cannot change places in one step, a kill can fall between the two it takes."""
    with store_in(tmp_path) as store:
        store.keep_best(repro_of(4), telling_verdict(2))
    (tmp_path / "best").rename(tmp_path / ".best.20260101-1")
    (tmp_path / "..best.20260101-2.partial").mkdir()
    found = store_in(tmp_path).best()
    assert found is not None
    assert found[1] == telling_verdict(2)
    assert not list(tmp_path.glob(".*"))


def test_of_each_other_failure_one_bundle_is_kept(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for _ in range(3):
        store.also_seen(repro_of(3), Verdict(Kind.CRASH, signal="SIGSEGV"))
        store.also_seen(repro_of(5), Verdict(Kind.CRASH, signal="SIGFPE"))
    bundles = sorted((tmp_path / "also_seen").iterdir())
    assert len(bundles) == 2
    assert {load_bundle(path).expected.exception for path in bundles} == {"SIGSEGV", "SIGFPE"}  # type: ignore[union-attr]


@pytest.mark.parametrize("keep", [0, 100, 4096, 5000])
def test_a_damaged_database_is_put_aside(tmp_path: Path, keep: int) -> None:
    with store_in(tmp_path) as store:
        for number in range(50):
            store.remember(f"key {number}", telling_verdict(number))
    path = tmp_path / "verdicts.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[:keep] + bytes(random.Random(keep).randbytes(len(whole) - keep)))
    with pytest.warns(UserWarning, match="damaged"):
        store = store_in(tmp_path)
    assert all(store.verdict(f"key {number}") is None for number in range(50))
    store.remember("key", telling_verdict())
    assert store_in(tmp_path).verdict("key") == telling_verdict()


def test_a_row_that_rotted_is_unknown(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        store.remember("key", Verdict(Kind.PASS, summary="aaaaaaaaaaaaaaaa"))
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(path.read_bytes().replace(b"aaaaaaaaaaaaaaaa", b"aaaaaaaaaaaaaaab"))
    assert store_in(tmp_path).verdict("key") is None


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TorchReproError, match="cannot keep verdicts"):
        store_in(tmp_path / "file")
    (tmp_path / "verdicts.sqlite").mkdir()
    with pytest.raises(TorchReproError, match="cannot keep verdicts"):
        store_in(tmp_path)


def test_a_full_disk_costs_a_warning_and_no_verdict_in_memory(tmp_path: Path) -> None:
    def write_until_full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        store = store_in(tmp_path)
        warnings.simplefilter("ignore")
        for number in range(400):
            store.remember(f"key {number}", telling_verdict(number))
        store.keep_best(Repro(repro_of(1).graph, (torch.randn(1 << 20),)), telling_verdict())
        assert any("could not write a verdict" in note for note in store.notes)
        assert any("could not save the best" in note for note in store.notes)
        assert all(store.verdict(f"key {number}") == telling_verdict(number) for number in range(400))
        assert not (tmp_path / "best").exists()

    _, status = os.waitpid(in_a_child(write_until_full), 0)
    assert status == 0
    store = store_in(tmp_path)
    found = [store.verdict(f"key {number}") for number in range(400)]
    assert all(verdict in (None, telling_verdict(number)) for number, verdict in enumerate(found))
    assert found[0] is not None


def test_a_child_of_the_search_cannot_use_the_store(tmp_path: Path) -> None:
    store = store_in(tmp_path)

    def use() -> None:
        with pytest.raises(HarnessError):
            store.verdict("key")

    _, status = os.waitpid(in_a_child(use), 0)
    assert status == 0


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_with_all_it_knew(tmp_path: Path) -> None:
    """`kill -9` of a writer, again and again; it tells over a pipe what it was promised is kept."""
    seed = random.Random(4)
    promised: dict[str, Verdict] = {}
    store_in(tmp_path / "warm").keep_best(repro_of(1), telling_verdict())
    for round_ in itertools.count():
        if round_ >= 20 and len(promised) > 30:  # a busy machine promises less in a round
            break
        reader, writer = os.pipe()

        def write(round_: int = round_, writer: int = writer) -> None:
            store = store_in(tmp_path)
            if store.notes:
                os._exit(3)
            for number in range(10_000):
                store.remember(f"{round_} {number}", telling_verdict(number))
                store.keep_best(repro_of(number + 1), telling_verdict(number))
                os.write(writer, f"{round_} {number}\n".encode())
                store.also_seen(repro_of(2), Verdict(Kind.CRASH, signal=f"signal {round_ % 5}"))

        child = in_a_child(write)
        os.close(writer)
        time.sleep(seed.uniform(0, 0.4))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        with os.fdopen(reader) as told:
            for line in told.read().splitlines():
                promised[line] = telling_verdict(int(line.split()[1]))

        store = store_in(tmp_path)
        assert not store.notes
        assert all(store.verdict(key) == verdict for key, verdict in promised.items())
        best = store.best()
        if best is not None:
            assert telling_verdict(best[0].inputs[0].numel() - 1) == best[1]
        assert best is not None or not promised
        store.close()
    store_in(tmp_path).close()
    kept = list((tmp_path / "also_seen").iterdir())
    assert len(kept) <= 5
    assert all(load_bundle(path) for path in kept)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"verdicts.sqlite", "best", "also_seen", "warm"}  # nothing half-written is left


def test_another_search_knows_what_was_stored_and_writes_nothing_there(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    with store_in(tmp_path) as store:
        store.remember("key", telling_verdict())
        store.remember("rotten", Verdict(Kind.PASS, summary="aaaaaaaaaaaaaaaa"))
    path.write_bytes(path.read_bytes().replace(b"aaaaaaaaaaaaaaaa", b"aaaaaaaaaaaaaaab"))
    before = path.read_bytes()
    other = store_knowing(path)
    assert other.verdict("key") == telling_verdict()
    assert other.verdict("rotten") is None
    other.remember("another", telling_verdict())
    assert path.read_bytes() == before
    with pytest.warns(UserWarning, match="not used"):
        assert not store_knowing(tmp_path / "missing.sqlite").verdicts


def test_a_run_of_another_search_counts_only_if_nothing_has_changed(tmp_path: Path) -> None:
    directory, identity = RunDirectory(tmp_path), Identity(bundle="digest", torch="2.13")
    assert not directory.is_about(identity)
    directory.begin(identity, fresh=False)
    assert directory.is_about(identity)
    assert not directory.is_about(replace(identity, torch="2.14"))
    assert not directory.is_about(replace(identity, oracle="make test {}"))
