"""What a pass is told: the first that fails in its order, whatever order the answers come in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from observing import ObserveHere
from torch.fx import Graph, GraphModule

from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.queries import Queries
from torchrepro.engine.store import Store
from torchrepro.minify.order import size_of
from torchrepro.minify.problem import Problem
from torchrepro.nouns.errors import HarnessError, SearchStopped
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

FAILS = Verdict(Kind.MISMATCH)
PASSES = Verdict(Kind.PASS)


def chain(length: int, *, elements: int = 3, value: float = 1.0) -> Repro:
    """A graph of so many ops; told apart by length, elements and value."""
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(torch.relu, (node,))
    graph.output(node)
    return Repro(GraphModule(torch.nn.Module(), graph), (torch.full((elements,), value),))


class Scripted(ObserveHere):
    """An oracle whose answers, and their order, are written down beforehand."""

    def __init__(
        self,
        answer: Callable[[Repro], Verdict],
        *,
        workers: int = 1,
        order: Callable[[int], Sequence[int]] = range,
    ) -> None:
        self.workers = workers
        self.asked: list[Repro] = []
        self.ended = 0
        self.answer = answer
        self._order = order

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        self.asked += candidates
        left = len(candidates)
        try:
            for index in self._order(len(candidates)):
                left -= 1
                yield index, self.answer(candidates[index])
        finally:
            self.ended += left


def problem(oracle: Scripted, *, size: int = 20, **more: Any) -> Problem:
    return Problem(Queries(chain(size), FAILS, oracle, **more))


def length(repro: Repro) -> int:
    return repro.ops


@settings(max_examples=40, deadline=None)
@given(
    failing=st.lists(st.booleans(), min_size=1, max_size=9),
    workers=st.integers(1, 4),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_first_that_fails_is_the_first_in_the_order_given(
    failing: list[bool], workers: int, shuffle: Any
) -> None:
    candidates = [chain(3, value=float(number)) for number in range(len(failing))]
    answers = {canonical_key(candidate): fails for candidate, fails in zip(candidates, failing, strict=True)}

    def answer(candidate: Repro) -> Verdict:
        return FAILS if answers[canonical_key(candidate)] else PASSES

    oracle = Scripted(answer, workers=workers, order=lambda count: shuffle.sample(range(count), count))
    found = problem(oracle).first_failing(candidates)
    assert found == next((index for index, fails in enumerate(failing) if fails), None)
    if found is not None:
        assert len(oracle.asked) <= (found // workers + 1) * workers


def test_what_is_still_under_way_is_ended_once_it_cannot_matter() -> None:
    oracle = Scripted(lambda repro: FAILS, workers=4)
    assert problem(oracle).first_failing([chain(n) for n in (1, 2, 3, 4)]) == 0
    assert oracle.ended == 3


def test_an_answer_that_is_known_costs_nothing() -> None:
    oracle = Scripted(lambda repro: FAILS if length(repro) == 3 else PASSES, workers=2)
    ours = problem(oracle)
    for _ in range(3):
        assert ours.first_failing([chain(1), chain(2), chain(3)]) == 2
    assert len(oracle.asked) == 3
    assert ours.fails(chain(20))  # the original
    assert len(oracle.asked) == 3


def test_a_known_failure_still_waits_for_a_bolder_one() -> None:
    oracle = Scripted(lambda repro: FAILS, workers=2)
    ours = problem(oracle)
    assert ours.fails(chain(3))
    assert ours.first_failing([chain(2), chain(3)]) == 0
    assert len(oracle.asked) == 2


def test_the_same_candidate_twice_is_one_question() -> None:
    oracle = Scripted(lambda repro: PASSES, workers=4)
    assert problem(oracle).first_failing([chain(2), None, chain(2), chain(2)]) is None
    assert len(oracle.asked) == 1


def test_workers_are_not_kept_idle_by_what_is_known() -> None:
    rounds: list[int] = []

    def noting(count: int) -> Sequence[int]:
        rounds.append(count)
        return range(count)

    oracle = Scripted(lambda repro: PASSES, workers=2, order=noting)
    ours = problem(oracle)
    ours.fails(chain(2))
    rounds.clear()
    ours.first_failing([chain(1), chain(2), None, chain(3)])
    assert rounds == [2]


def test_the_best_is_what_fails_and_is_smaller() -> None:
    oracle = Scripted(lambda repro: FAILS if length(repro) in (4, 9, 30) else PASSES)
    ours = problem(oracle)
    assert not ours.accept(chain(30))  # it fails, and is larger
    assert not ours.accept(chain(2))
    assert ours.accept_first([chain(3), None, chain(9), chain(4)]) == 2
    assert ours.best.ops == 9
    assert ours.best.expected == ours.failure.signature
    assert ours.accept(chain(4))
    assert not ours.accept(chain(4))  # as large as the best
    assert ours.best_size == size_of(chain(4))
    assert not any(length(repro) == 30 for repro in oracle.asked)


@pytest.mark.parametrize("kind", [Kind.INVALID, Kind.NOT_COMPARABLE, Kind.PASS, Kind.CRASH, Kind.NON_FINITE])
def test_nothing_else_counts_as_the_failure(kind: Kind) -> None:
    ours = problem(Scripted(lambda repro: Verdict(kind)))
    assert not ours.accept(chain(2))
    assert ours.best.ops == 20


def test_a_store_that_lies_cannot_make_a_worse_one_the_best() -> None:
    class Lying(Store):
        def verdict(self, key: str) -> Verdict | None:
            return Verdict(Kind.CRASH, signal="SIGSEGV")

    ours = problem(Scripted(lambda repro: FAILS), store=Lying())
    assert not ours.accept(chain(2))


def test_what_cannot_run_is_not_asked_about() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.mm, (x, x)))
    hopeless = Repro(GraphModule(torch.nn.Module(), graph), (torch.ones(2, 3),))
    oracle = Scripted(lambda repro: FAILS)
    ours = problem(oracle)
    assert not ours.fails(hopeless)
    assert not ours.fails(hopeless)
    assert not oracle.asked
    unraised = Verdict(Kind.MISSING_ERROR)
    missing = Problem(Queries(chain(20), unraised, Scripted(lambda repro: unraised)))
    assert missing.fails(hopeless)  # where eager is meant to raise


def test_another_failure_is_kept_beside_once() -> None:
    def answer(repro: Repro) -> Verdict:
        return Verdict(Kind.CRASH, signal="SIGSEGV" if length(repro) % 2 else "SIGFPE")

    store = Store()
    ours = problem(Scripted(answer), store=store)
    for count in range(1, 9):
        assert not ours.accept(chain(count))
    assert [verdict.signal for verdict in store.others.values()] == ["SIGSEGV", "SIGFPE"]


# Flaky failures.


@pytest.mark.parametrize("workers", [1, 3])
def test_a_flaky_candidate_passes_only_after_all_of_its_runs(workers: int) -> None:
    runs = itertools.count(1)
    oracle = Scripted(lambda repro: FAILS if next(runs) == 5 else PASSES, workers=workers)
    ours = problem(oracle, repeats=5)
    assert ours.fails(chain(2))
    assert len(oracle.asked) - oracle.ended == 5
    never = Scripted(lambda repro: PASSES, workers=workers)
    ours = problem(never, repeats=5)
    assert not ours.fails(chain(2))
    assert not ours.fails(chain(2))  # known by now
    assert len(never.asked) == 5


def test_a_flaky_failure_that_shows_needs_no_more_runs() -> None:
    oracle = Scripted(lambda repro: FAILS)
    assert problem(oracle, repeats=30).fails(chain(2))
    assert len(oracle.asked) == 1


def test_the_bolder_of_two_flaky_ones_has_all_of_its_runs() -> None:
    runs = itertools.count(1)

    def answer(repro: Repro) -> Verdict:
        return FAILS if length(repro) == 3 or next(runs) == 4 else PASSES

    oracle = Scripted(answer, workers=2)
    assert problem(oracle, repeats=4).first_failing([chain(2), chain(3)]) == 0


def test_a_pass_that_was_not_run_often_enough_is_not_remembered() -> None:
    oracle = Scripted(lambda repro: PASSES)
    ours = problem(oracle, repeats=3)
    end_the_time_after(2, oracle)
    with pytest.raises(SearchStopped):
        ours.fails(chain(2))
    assert ours.queries.store.verdict(canonical_key(chain(2))) is None


def test_what_eager_cannot_run_is_not_run_again() -> None:
    oracle = Scripted(lambda repro: Verdict(Kind.INVALID))
    assert not problem(oracle, repeats=9).fails(chain(2))
    assert len(oracle.asked) == 1


# The end of the time, and accounts.


def test_at_the_end_of_the_time_the_best_stays_what_it_was() -> None:
    oracle = Scripted(lambda repro: FAILS)
    ours = problem(oracle)
    assert ours.accept(chain(9))
    end_the_time_after(0, oracle)
    with pytest.raises(SearchStopped):
        ours.accept(chain(3))
    assert ours.best.ops == 9
    assert ours.queries.store.verdict(canonical_key(chain(9))) == FAILS


def test_answers_that_came_in_time_are_remembered() -> None:
    oracle = Scripted(lambda repro: PASSES, workers=4)
    ours = problem(oracle)
    end_the_time_after(2, oracle)
    with pytest.raises(SearchStopped):
        ours.first_failing([chain(n) for n in (1, 2, 3, 4)])
    known = [ours.queries.store.verdict(canonical_key(chain(n))) for n in (1, 2, 3, 4)]
    assert known == [PASSES, PASSES, None, None]
    assert oracle.ended == 1


def end_the_time_after(answers: int, oracle: Scripted) -> None:
    """As a search process does it: the wait for the next answer raises."""
    given_ = itertools.count()
    answer = oracle.answer

    def last(repro: Repro) -> Verdict:
        if next(given_) == answers:
            raise SearchStopped("the time is up")
        return answer(repro)

    oracle.answer = last


def test_the_accounts_of_each_pass() -> None:
    oracle = Scripted(lambda repro: FAILS if length(repro) == 3 else PASSES)
    ours = problem(oracle)
    with ours.running("one"):
        ours.accept(chain(2))
        ours.accept(chain(3))
    with ours.running("two"):
        ours.fails(chain(2))
    one, two = ours.queries.statistics["one"], ours.queries.statistics["two"]
    assert (one.queries, one.known, one.rejected, one.adopted) == (2, 0, 0, 1)
    assert (two.queries, two.known, two.rejected, two.adopted) == (0, 1, 0, 0)
    assert ours.queries.asked == 2
    assert one.seconds > 0


def test_minimise_makes_the_fewest_items_the_best() -> None:
    oracle = Scripted(lambda repro: FAILS if length(repro) >= 4 else PASSES, workers=2)
    ours = problem(oracle)
    kept = ours.minimise(list(range(20)), lambda items: chain(len(items)) if items else None)
    assert len(kept) == 4
    assert ours.best.ops == 4


def test_an_oracle_that_does_not_answer_is_an_error_of_ours() -> None:
    ours = problem(Scripted(lambda repro: FAILS, order=lambda count: ()))
    with pytest.raises(HarnessError, match="answered none"):
        ours.fails(chain(2))


def through_torch_compile(repro: Repro) -> Repro:
    return replace(repro, compiler=replace(repro.compiler, recapture=True))


def test_a_search_begins_again_with_another_way_to_run_the_original() -> None:
    """What is handed straight to the compiler fails at any length, by torch.compile only from three on."""
    asking = problem(
        Scripted(lambda repro: FAILS if not repro.compiler.recapture or length(repro) >= 3 else PASSES)
    )
    assert asking.accept(chain(1))
    assert asking.restart_from(through_torch_compile(asking.original))
    assert length(asking.best) == 20
    assert not asking.accept(through_torch_compile(chain(1)))
    assert asking.accept(through_torch_compile(chain(3)))
    assert asking.best.compiler.recapture


def test_a_search_keeps_its_best_where_the_other_way_does_not_fail() -> None:
    asking = problem(Scripted(lambda repro: PASSES if repro.compiler.recapture else FAILS))
    assert asking.accept(chain(2))
    assert not asking.restart_from(through_torch_compile(asking.original))
    assert length(asking.best) == 2
