"""Ranks as threads on a store in memory: any breaks end in one union, any difference in an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]

from torchrepro.frontend.trace.tracer import Stop
from torchrepro.ranks.rendezvous import Rendezvous
from torchrepro.ranks.store import JobStore
from torchrepro.second_opinion.lock_step import (
    Collective,
    Proposal,
    RanksDisagree,
    RanksMissing,
    collective_of,
)

T = TypeVar("T")
SECONDS = 20.0


@contextmanager
def ranks(count: int) -> Iterator[list[Collective]]:
    """So many ranks on one store. All are threads of this process, so none of them can die alone."""
    store = HashStore()
    stores = [JobStore(store, "test") for _ in range(count)]
    try:
        yield [Collective(Rendezvous(stores[rank], rank, range(count))) for rank in range(count)]
    finally:
        for each in stores:
            each.close()


def together(sides: Sequence[Collective], act: Callable[[Collective], T]) -> list[T | Exception]:
    """What each rank gets, or raises."""

    def attempt(side: Collective) -> T | Exception:
        try:
            return act(side)
        except Exception as exc:
            return exc

    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(attempt, sides))


def at(index: int) -> Stop:
    return Stop(index, 1)


def traced(ops: Sequence[str], breaks: frozenset[Stop]) -> Proposal:
    """A stand-in for the tracer: instruction i records ops[i], and the region ends at the first break."""
    end = min((stop.index for stop in breaks), default=len(ops))
    graph = tuple(ops[:end])
    return Proposal("f at model.py:3", breaks, graph, digest=str(graph))


def negotiated(side: Collective, ops: Sequence[str], own: frozenset[Stop]) -> tuple[Proposal, int]:
    """Trace, propose and trace again until all agree; what is then compiled, and after how many traces."""
    breaks, traces = own, 0
    while True:
        proposal, traces = traced(ops, breaks), traces + 1
        union = side.run_compiler_collective(proposal, SECONDS)
        if union is None:
            return proposal, traces
        breaks = union


OPS = [f"op_{index}" for index in range(6)]


@given(st.lists(st.frozensets(st.integers(0, 5).map(at), max_size=3), min_size=2, max_size=3))
@settings(max_examples=30)
def test_whatever_breaks_they_have_all_ranks_end_with_the_union(own: list[frozenset[Stop]]) -> None:
    with ranks(len(own)) as sides:
        found = together(sides, lambda side: negotiated(side, OPS, own[side.rank]))
    union = frozenset().union(*own)
    restarts = any(breaks != union for breaks in own)
    assert found == [(traced(OPS, union), 1 + restarts)] * len(own)


def test_the_next_function_is_agreed_on_after_the_first() -> None:
    with ranks(2) as sides:
        for own in ([{at(1)}, {at(4)}], [set(), set()], [{at(2)}, {at(2)}]):
            mine = [frozenset(each) for each in own]
            found = together(sides, lambda side, mine=mine: negotiated(side, OPS, mine[side.rank]))
            assert found[0] == found[1]


def test_a_break_found_only_in_the_second_trace_restarts_once_more() -> None:
    proposals: Mapping[int, list[frozenset[Stop]]] = {
        0: [frozenset({at(5)}), frozenset({at(5), at(3)}), frozenset({at(5), at(3), at(2)})],
        1: [frozenset({at(3)}), frozenset({at(5), at(3), at(2)}), frozenset({at(5), at(3), at(2)})],
    }

    def act(side: Collective) -> list[frozenset[Stop] | None]:
        return [side.run_compiler_collective(traced(OPS, breaks), SECONDS) for breaks in proposals[side.rank]]

    with ranks(2) as sides:
        first, second = together(sides, act)
    assert first == second
    assert isinstance(first, list)
    assert [union is None for union in first] == [False, False, True]


def test_different_graphs_are_an_error_on_all_ranks_that_names_them_and_the_first_differing_op() -> None:
    with ranks(3) as sides:
        ops = [OPS, OPS, [*OPS[:2], "torch.relu(op_1)"]]
        found = together(sides, lambda side: negotiated(side, ops[side.rank], frozenset()))
        for error in found:
            assert isinstance(error, RanksDisagree)
            assert "operation 3 is `op_2` on ranks 0 and 1; `torch.relu(op_1)` on rank 2" in error.fact
            assert error.groups == ((0, 1), (2,))
        again = together(sides, lambda side: negotiated(side, OPS, frozenset()))
        assert again == [(traced(OPS, frozenset()), 1)] * 3  # who raises together stays in step


def test_a_graph_that_ends_early_is_named_as_such() -> None:
    with ranks(2) as sides:
        found = together(sides, lambda side: negotiated(side, OPS[: 6 - side.rank], frozenset()))
    assert "operation 6 is `op_5` on rank 0; `(the end)` on rank 1" in str(found[0])


def test_the_same_operations_with_different_results_disagree_too() -> None:
    def act(side: Collective) -> frozenset[Stop] | None:
        return side.run_compiler_collective(
            Proposal("f", frozenset(), ("a",), f"returns {side.rank}"), SECONDS
        )

    with ranks(2) as sides:
        found = together(sides, act)
    assert all("same operations of f but return different values" in str(error) for error in found)


def test_a_rank_that_does_not_take_over_a_break_is_no_endless_loop() -> None:
    def act(side: Collective) -> list[frozenset[Stop] | None]:
        own = frozenset({at(side.rank)})
        return [side.run_compiler_collective(traced(OPS, own), SECONDS) for _ in range(3)]

    with ranks(2) as sides:
        assert all(isinstance(error, RanksDisagree) for error in together(sides, act))


def test_ranks_that_trace_different_functions_are_told_both() -> None:
    def act(side: Collective) -> Any:
        entry = "f at a.py:1" if side.rank == 0 else "g at b.py:9"
        return side.any_misses(entry, False, "", SECONDS)

    with ranks(2) as sides:
        for error in together(sides, act):
            assert isinstance(error, RanksDisagree)
            assert "a call of f at a.py:1 on rank 0; a call of g at b.py:9 on rank 1" in error.fact


@pytest.mark.parametrize("missing", [(), (1,), (0, 1)])
def test_a_guard_miss_on_one_rank_is_heard_by_all(missing: tuple[int, ...]) -> None:
    with ranks(2) as sides:
        found = together(sides, lambda side: side.any_misses("f", side.rank in missing, "", SECONDS))
    assert found == [bool(missing)] * 2


def test_ranks_whose_guards_hold_for_different_graphs_trace_too() -> None:
    with ranks(2) as sides:
        alike = together(sides, lambda side: side.any_misses("f", False, "graph", SECONDS))
        apart = together(sides, lambda side: side.any_misses("f", False, str(side.rank), SECONDS))
    assert (alike, apart) == ([False, False], [True, True])


def test_a_rank_that_raises_is_heard_by_those_that_wait_for_its_graph() -> None:
    def act(side: Collective) -> Any:
        if side.rank == 1:
            return side.fail("f", ValueError("no such thing\nand more"), SECONDS)
        return side.run_compiler_collective(traced(OPS, frozenset()), SECONDS)

    with ranks(2) as sides:
        error, nothing = together(sides, act)
    assert nothing is None
    assert isinstance(error, RanksDisagree)
    assert "a failure in f: ValueError: no such thing on rank 1" in error.fact


def test_a_rank_that_never_comes_is_named_and_not_waited_for_again() -> None:
    with ranks(3) as sides:
        for _ in range(2):
            for error in together(sides[:2], lambda side: side.any_misses("f at a.py:1", False, "", 0.2)):
                assert isinstance(error, RanksMissing)
                assert error.missing == (2,)
                assert "rank 2 did not come to a call of f at a.py:1 within 0.2 s" in error.fact
        (late,) = together(sides[2:], lambda side: side.any_misses("f at a.py:1", False, "", SECONDS))
        assert isinstance(late, RanksMissing)  # who comes too late does not go on alone


def test_without_a_job_there_is_nobody_to_agree_with() -> None:
    assert collective_of() is None
