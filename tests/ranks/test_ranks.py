"""What ranks tell one another, played by threads over a store in memory: all hear the same, nobody hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.nouns.errors import RankFailed
from torchrepro.ranks.agreement import Agreement, Failure, Ranks
from torchrepro.ranks.process import Process
from torchrepro.ranks.rendezvous import Rendezvous, name_ranks
from torchrepro.ranks.store import JobStore, StoreLost

Play = Callable[[Ranks], object]


class Job:
    """Some ranks that share a store."""

    def __init__(self, world_size: int, timeout: float = 20.0, store: dist.Store | None = None) -> None:
        self.store = store or dist.HashStore()
        self.notes: list[str] = []
        self.ranks = [
            Ranks(
                Rendezvous(JobStore(self.store, "test"), rank, range(world_size)),
                timeout=timeout,
                note=self.notes.append,
            )
            for rank in range(world_size)
        ]

    def play(self, *plays: Play) -> list[object]:
        """Each rank plays its part in a thread of its own."""
        with ThreadPoolExecutor(len(plays)) as pool:
            return list(pool.map(lambda ranks, play: play(ranks), self.ranks, plays))


def at(event: str, failure: Failure | None = None) -> Play:
    return lambda ranks: ranks.agree(event, failure)


def test_healthy_ranks_agree_again_and_again() -> None:
    job = Job(3)
    events = [f"graph {number}" for number in range(20)]
    for answers in job.play(*[lambda ranks: [ranks.agree(event) for event in events]] * 3):
        assert answers == [Agreement()] * 20
    assert job.notes == []


def test_what_healthy_ranks_write_does_not_grow_with_the_events() -> None:
    job = Job(2)
    job.play(*[lambda ranks: [ranks.agree(f"call {number}") for number in range(5)]] * 2)
    before = job.store.num_keys()
    job.play(*[lambda ranks: [ranks.agree(f"call {number}") for number in range(50)]] * 2)
    assert job.store.num_keys() == before


def test_all_hear_of_a_failure_and_the_program_may_go_on_after_it() -> None:
    job = Job(3)
    boom = Failure("boom", "/out/bundle")
    assert job.play(at("one"), at("one", boom), at("one")) == [Agreement(failed={1: boom})] * 3
    assert job.play(at("two"), at("two"), at("two")) == [Agreement()] * 3


def test_all_hear_of_a_failure_at_another_event() -> None:
    boom = Failure("boom")
    for answer in Job(3).play(at("graph 2"), at("graph 2"), at("graph 7", boom)):
        assert answer == Agreement(failed={2: boom})


def test_a_second_group_on_the_same_store_knows_nothing_of_the_failures_of_the_first() -> None:
    first = Job(2)
    first.play(at("graph 0"), at("graph 0", Failure("boom")))
    first.ranks[1].leave()
    second = Job(2, store=first.store)
    assert second.play(at("graph 0"), at("graph 0")) == [Agreement()] * 2
    assert second.notes == []


def test_a_failure_where_nobody_else_comes_is_told_without_a_long_wait() -> None:
    job = Job(2, timeout=0.3)
    job.play(at("graph 0"), at("graph 0"))
    boom = Failure("boom at call 57")
    assert job.ranks[1].tell(boom) == Agreement(failed={1: boom}, missing=(0,))
    assert job.ranks[0].agree("graph 1") == Agreement(failed={1: boom})


@settings(max_examples=25, deadline=None)
@given(
    fates=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=5),
)
def test_whoever_fails_and_whoever_comes_late_all_ranks_hear_the_same(fates: list[tuple[bool, int]]) -> None:
    def part(fails: bool, late: int) -> Play:
        def play(ranks: Ranks) -> Agreement:
            time.sleep(late / 1000)
            return ranks.agree("graph 0", Failure(f"failure {ranks.rank}") if fails else None)

        return play

    expected = {rank: Failure(f"failure {rank}") for rank, (fails, _) in enumerate(fates) if fails}
    job = Job(len(fates))
    assert job.play(*[part(*fate) for fate in fates]) == [Agreement(failed=expected)] * len(fates)
    assert job.notes == []


def test_ranks_at_different_events_stop_waiting_at_once_and_say_so_once_each() -> None:
    job = Job(2, timeout=60)
    started = time.monotonic()
    for number in range(3):
        answers = job.play(at(f"graph {number}"), at(f"graph {number + 1}"))
        assert answers == [Agreement(), Agreement()]
    assert time.monotonic() - started < 10
    assert len(job.notes) == 2
    assert all("'graph 0'" in note and "'graph 1'" in note for note in job.notes)


def test_a_rank_that_does_not_come_is_named_once_and_not_waited_for_again() -> None:
    job = Job(3, timeout=0.3)
    first = job.play(at("graph 4"), at("graph 4"))
    assert first == [Agreement(missing=(2,))] * 2
    started = time.monotonic()
    assert job.play(at("graph 5"), at("graph 5")) == [Agreement()] * 2
    assert time.monotonic() - started < 0.25
    assert [note.partition(" within")[0] for note in job.notes] == ["rank 2 did not come to 'graph 4'"] * 2


def test_a_failure_is_heard_even_where_nobody_waits_any_more() -> None:
    job = Job(2, timeout=0.2)
    job.play(at("graph 0"))
    boom = Failure("boom")
    assert job.ranks[1].agree("graph 9", boom) == Agreement(failed={1: boom}, missing=(0,))
    assert job.ranks[0].agree("graph 1") == Agreement(failed={1: boom})
    assert job.ranks[0].agree("graph 2") == Agreement()


def test_a_rank_that_leaves_in_good_order_is_not_dead() -> None:
    job = Job(2, timeout=60)
    job.ranks[1].leave()
    started = time.monotonic()
    assert job.ranks[0].agree("graph 0") == Agreement(missing=(1,))
    assert time.monotonic() - started < 5
    assert len(job.notes) == 1
    assert "rank 1 has left" in job.notes[0]


def test_a_lost_store_is_an_agreement_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHREPRO_RUN_ID", raising=False)
    job = Job(2)
    del job.store
    assert job.ranks[0].agree("graph 0") == Agreement(missing=(1,))
    assert job.ranks[0].agree("graph 1") == Agreement()
    assert job.ranks[0].run_id("mine") == "mine"
    assert len(job.notes) == 1
    boom = Failure("boom")
    assert job.ranks[1].agree("graph 0", boom) == Agreement(failed={1: boom}, missing=(0,))


def test_a_store_that_does_not_answer_is_given_up() -> None:
    class Frozen(dist.Store):
        def check(self, keys: list[str]) -> bool:
            return thawed.wait(30)

    frozen, thawed = Frozen(), threading.Event()
    store = JobStore(frozen, "test", timeout=0.2)
    try:
        with pytest.raises(StoreLost, match="no answer"):
            store.has("key")
    finally:
        thawed.set()


def test_the_first_rank_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHREPRO_RUN_ID", raising=False)
    job = Job(3)
    ids = job.play(*[lambda ranks: ranks.run_id(f"run of {ranks.rank}")] * 3)
    assert len(set(ids)) == 1
    assert str(ids[0]).startswith("run of")


def test_the_environment_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHREPRO_RUN_ID", "given")
    assert Job(2).ranks[1].run_id("own") == "given"


def test_without_a_process_group_there_are_no_ranks() -> None:
    assert Ranks.current() is None


def test_looking_for_ranks_does_not_import_torch() -> None:
    program = (
        "import sys; from torchrepro.ranks.agreement import Ranks; "
        "assert Ranks.current() is None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(("backend", "world_size"), [("gloo", 1), ("fake", 8)])
def test_a_single_rank_and_a_pretended_one_have_nobody_to_talk_to(backend: str, world_size: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = dist.HashStore() if backend == "gloo" else FakeStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=world_size)
    try:
        assert Ranks.current() is None
    finally:
        dist.destroy_process_group()


def test_a_process_is_gone_when_it_has_ended_or_its_number_belongs_to_another() -> None:
    own = Process.own(0)
    assert not own.gone()
    assert Process(0, own.pid, "1").gone() or not own.started
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    running = Process(1, child.pid, _start_time(child.pid))
    assert not running.gone()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: nobody has collected it
    assert running.gone() or not running.started
    child.communicate()
    assert running.gone()


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def test_the_message_names_ranks_reasons_and_bundles() -> None:
    agreement = Agreement(
        failed={0: Failure("boom", "/out/a"), 1: Failure("boom", "/out/b"), 3: Failure("bang")},
        missing=(4,),
        dead=(2,),
        left_behind={2: "/out/c"},
    )
    error = agreement.error()
    assert isinstance(error, RankFailed)
    assert (error.failed, error.dead) == ((0, 1, 3), (2,))
    for fact in (
        "ranks 0 and 1 failed: boom\n  bundle of rank 0: /out/a\n  bundle of rank 1: /out/b\n",
        "rank 3 failed: bang\n",
        "rank 2 died\n  bundle of rank 2: /out/c\n",
        "rank 4 did not answer\n",
    ):
        assert fact in str(error)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 2, 5], "ranks 0, 2 and 5"),
        ([*range(8), 12], "ranks 0 to 7 and 12"),
    ],
)
def test_ranks_are_named_in_few_words(ranks: list[int], words: str) -> None:
    assert name_ranks(ranks) == words
