"""A run's own cache starts from what an earlier warm-up has left, and gives nothing else away."""

from __future__ import annotations

from pathlib import Path

from torchrepro.engine.search.setup import keep_seed, start_cache


def test_what_a_warm_up_leaves_is_where_the_next_run_starts(tmp_path: Path) -> None:
    seed, first, second = tmp_path / "warm" / "abc", tmp_path / "first", tmp_path / "second"
    start_cache(first, seed)
    (first / "aa").mkdir()
    (first / "aa" / "kernel.so").write_text("compiled")
    (first / "locks").mkdir()
    keep_seed(first, seed)
    (first / "aa" / "of_a_candidate.so").write_text("compiled later")
    keep_seed(first, seed)
    start_cache(second, seed)
    assert [path.name for path in second.rglob("*")] == ["aa", "kernel.so"]
    assert [path.name for path in seed.parent.iterdir()] == ["abc"], "nothing half-written is left"


def test_a_run_that_goes_on_keeps_its_cache(tmp_path: Path) -> None:
    seed, cache = tmp_path / "seed", tmp_path / "cache"
    for directory, text in ((seed, "old"), (cache, "own")):
        directory.mkdir()
        (directory / "kernel.so").write_text(text)
    start_cache(cache, seed)
    assert (cache / "kernel.so").read_text() == "own"


def test_a_place_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "cache"
    start_cache(cache, tmp_path / "file" / "seed")
    keep_seed(cache, tmp_path / "file" / "seed")
    assert cache.is_dir()
