"""What `Queries` adds to an oracle: nothing is run twice, whatever the job, and runs are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from observing import ObserveHere

from torchrepro.engine.oracle import JUDGE_BEFORE_CODE
from torchrepro.engine.queries import Queries
from torchrepro.engine.store import Store
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

FAILS, PASSES = Verdict(Kind.MISMATCH), Verdict(Kind.PASS)
CRASH = Verdict(Kind.CRASH, signal="SIGSEGV")
JOB = "package.module:without"


def filled(value: float) -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: (x + 1,)), (torch.full((2,), value),))


class Scripted(ObserveHere):
    """Answers by a function of the candidate's value, the job and its payload, and keeps what was asked."""

    workers = 2

    def __init__(self, answer: Callable[..., Verdict]) -> None:
        self._answer = answer
        self.asked: list[tuple[float, str, dict[str, Any]]] = []

    def judge(
        self, candidates: Sequence[Repro], *, job: str = "", **payload: Any
    ) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            value = float(candidate.inputs[0][0])
            self.asked.append((value, job, payload))
            yield index, self._answer(value, job, payload)


def queries_on(oracle: Scripted, **options: Any) -> Queries:
    return Queries(filled(0), FAILS, oracle, **options)


def test_each_has_a_verdict_in_its_place_and_equal_ones_are_run_once() -> None:
    oracle = Scripted(lambda value, job, payload: FAILS if value > 1 else PASSES)
    queries = queries_on(oracle)
    assert queries.verdicts([filled(2), filled(1), filled(2), filled(0)]) == [FAILS, PASSES, FAILS, FAILS]
    assert [value for value, _, _ in oracle.asked] == [2, 1]  # 0 is the original
    assert queries.asked == 2
    assert queries.fails(filled(2))
    assert queries.asked == 2


def test_another_job_or_another_payload_is_another_question() -> None:
    oracle = Scripted(lambda value, job, payload: PASSES if payload.get("off") == ["b"] else FAILS)
    queries = queries_on(oracle)
    for _ in range(2):
        assert queries.verdict_on(filled(1), job=JOB, off=["a"]) == FAILS
        assert queries.verdict_on(filled(1), job=JOB, off=["b"], extra={"path": "anywhere"}) == PASSES
        assert queries.verdict_on(filled(1)) == FAILS
    assert [payload for _, _, payload in oracle.asked] == [
        {"off": ["a"]},
        {"off": ["b"], "path": "anywhere"},
        {},
    ]
    assert queries.known(filled(1), job=JOB, off=["b"]) == PASSES
    assert queries.known(filled(1), job=JOB, off=["c"]) is None


def test_what_one_has_learnt_another_on_the_same_store_knows() -> None:
    store = Store()
    queries_on(Scripted(lambda *asked: FAILS), store=store).verdict_on(filled(1))
    silent = Scripted(lambda *asked: pytest.fail("asked again"))
    assert queries_on(silent, store=store).verdict_on(filled(1)) == FAILS


def test_a_run_that_was_stopped_early_is_no_verdict_for_others() -> None:
    store = Store()
    stopped = Verdict(Kind.NOT_COMPARABLE)
    early = Scripted(lambda value, job, payload: FAILS if value > 1 else stopped)
    search = queries_on(early, store=store, job=JUDGE_BEFORE_CODE)
    assert search.first_failing([filled(1), filled(2)]) is not None
    assert search.first_failing([filled(1)]) is None
    assert {job for _, job, _ in early.asked} == {JUDGE_BEFORE_CODE}
    assert len(early.asked) == 2
    usual = Scripted(lambda *asked: PASSES)
    others = queries_on(usual, store=store)
    assert others.verdicts([filled(1), filled(2)]) == [PASSES, FAILS]
    assert [value for value, _, _ in usual.asked] == [1]


class Backwards(Scripted):
    """Answers the last candidate first, as where it is compiled sooner than the others."""

    workers = 3

    def judge(
        self, candidates: Sequence[Repro], *, job: str = "", **payload: Any
    ) -> Iterator[tuple[int, Verdict]]:
        for index, verdict in super().judge(candidates[::-1], job=job, **payload):
            yield len(candidates) - 1 - index, verdict


@pytest.mark.parametrize(("in_order", "asked"), [(True, [3, 2, 1]), (False, [3])])
def test_where_the_order_says_nothing_the_first_failure_that_is_seen_ends_the_search(
    in_order: bool, asked: list[float]
) -> None:
    oracle = Backwards(lambda *asked: FAILS)
    found = queries_on(oracle).first_failing([filled(1), filled(2), filled(3)], in_order=in_order)
    assert found is not None
    assert [value for value, _, _ in oracle.asked] == asked
    assert found.index == (0 if in_order else 2)


def test_a_single_run_is_neither_answered_from_the_store_nor_kept_in_it() -> None:
    store = Store()
    oracle = Scripted(lambda *asked: CRASH)
    queries = queries_on(oracle, store=store)
    assert [queries.run_once(filled(1)) for _ in range(2)] == [CRASH, CRASH]
    assert queries.asked == 2
    assert queries.known(filled(1)) is None
    assert store.others == {}
    queries.verdict_on(filled(1))
    assert list(store.others.values()) == [CRASH]


def test_a_flaky_failure_is_looked_for_in_all_runs_and_another_one_is_not_forgotten() -> None:
    answers = iter([PASSES, CRASH, PASSES])
    queries = queries_on(Scripted(lambda *asked: next(answers)), repeats=3)
    assert queries.verdict_on(filled(1)) == CRASH
    assert queries.asked == 3


def test_rounds_of_a_flaky_failure_are_run_again_until_a_value_is_wrong() -> None:
    answers = iter([PASSES, PASSES, FAILS, PASSES])
    oracle = Scripted(lambda *asked: PASSES)
    oracle.rounds = lambda repro, **limits: [next(answers)]  # type: ignore[method-assign]
    queries = queries_on(oracle, repeats=9)
    assert queries.rounds_of_each([filled(1)]) == [[FAILS]]
    assert queries.asked == 3
    queries.repeats = 1
    assert queries.rounds_of_each([filled(1)]) == [[PASSES]]


def test_where_eager_is_meant_to_raise_an_invalid_run_does_not_decide() -> None:
    missing = Verdict(Kind.MISSING_ERROR)
    answers = iter([Verdict(Kind.INVALID), missing])
    queries = Queries(filled(0), missing, Scripted(lambda *asked: next(answers)), repeats=3)
    assert queries.fails(filled(1))
