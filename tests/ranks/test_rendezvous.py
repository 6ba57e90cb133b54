"""The rendezvous, played by threads over a store in memory: one table for all, each entry written once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

from torchrepro.ranks.rendezvous import Absent, Rendezvous, Table
from torchrepro.ranks.store import JobStore


def ranks_on(store: dist.Store, count: int) -> list[Rendezvous]:
    return [Rendezvous(JobStore(store, "test"), rank, range(count)) for rank in range(count)]


def together(ranks: list[Rendezvous], act: Callable[[Rendezvous], Table]) -> list[Table]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, ranks))


def test_all_ranks_read_the_same_words_alike_or_not() -> None:
    store = dist.HashStore()
    ranks = ranks_on(store, 3)
    alike = together(ranks, lambda each: each.exchange("word", "a step", 20))
    assert alike == [{0: "word", 1: "word", 2: "word"}] * 3
    different = together(ranks, lambda each: each.exchange(f"word {each.rank}", "a step", 20))
    assert different == [{0: "word 0", 1: "word 1", 2: "word 2"}] * 3


def test_a_late_rank_finds_its_entry_taken_and_reads_the_table_of_the_others() -> None:
    store = dist.HashStore()
    ranks = ranks_on(store, 3)
    tables = together(ranks[:2], lambda each: each.exchange("here", "graph 4", 0.2))
    late = Absent("rank 2 did not come to graph 4 within 0.2 s")
    assert tables == [{0: "here", 1: "here", 2: late}] * 2
    assert ranks[2].exchange("too late", "graph 4", 20) == {0: "here", 1: "here", 2: late}


def test_rounds_of_one_channel_are_not_those_of_another() -> None:
    store = dist.HashStore()
    ranks = ranks_on(store, 2)
    together(ranks, lambda each: each.exchange("", "a step", 20))
    assert not ranks[0].begun("other")
    ranks[1].exchange("alone", "a failure", 0.1, "other")
    assert ranks[0].begun("other")
    assert ranks[0].exchange("heard", "a failure", 20, "other")[1] == "alone"
    assert not ranks[0].begun("other")
    assert (
        together(ranks, lambda each: each.exchange("again", "a step", 20)) == [{0: "again", 1: "again"}] * 2
    )


def test_without_a_store_a_rank_hears_itself_alone() -> None:
    store = dist.HashStore()
    (first, _) = ranks_on(store, 2)
    del store
    table = first.exchange("word", "a step", 20)
    assert table[0] == "word"
    absent = table[1]
    assert isinstance(absent, Absent)
    assert "the store of this job cannot be reached" in absent.fact
    assert not absent.dead
    assert first.first("name", "mine") == "mine"
