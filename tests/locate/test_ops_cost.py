"""The culprit op of a graph of 1,000 is found in few compiles, whatever the failure and its place."""

from __future__ import annotations

import math

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from synthetic_values import CountingOracle, guilty_node, random_graph, watching_on

from torchrepro.locate.ops import find_op
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Way
from torchrepro.nouns.verdict import Kind

OPS = 1000
FOR_THE_OP = 2 * math.log2(OPS)
"""Of the 2·log2(ops) + 6 that are promised for stage and op together."""

anywhere = st.builds(
    lambda culprit, seed: random_graph(OPS, culprit, seed), st.integers(0, OPS - 1), st.integers(0, 1 << 16)
)
few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.generate))
"""Half a second each; a graph of 1,000 ops is not shrunk in any time."""


def found_in(repro: Repro, oracle: CountingOracle, at_a_time: int = 1 << 30) -> tuple[str | None, Way | None]:
    watching = watching_on(repro, oracle, at_a_time)
    op = find_op(watching.inquiry, watching)
    # What was cancelled, because an earlier candidate failed, counts as a compile.
    assert oracle.asked <= watching.inquiry.asked <= FOR_THE_OP
    return (None, None) if op is None else (op.node, op.way)


def the_culprit(repro: Repro) -> str:
    node = guilty_node(repro)
    assert node is not None
    return node.name


@few
@given(repro=anywhere)
def test_wrong_values_take_one_look_and_one_proof(repro: Repro) -> None:
    oracle = CountingOracle()
    assert found_in(repro, oracle) == (the_culprit(repro), Way.WINDOW)
    assert oracle.asked == 2


@few
@given(repro=anywhere, at_a_time=st.integers(20, 300))
def test_values_that_do_not_fit_into_memory_are_watched_in_batches(repro: Repro, at_a_time: int) -> None:
    oracle = CountingOracle()
    assert found_in(repro, oracle, at_a_time) == (the_culprit(repro), Way.WINDOW)
    assert max(oracle.watched) <= at_a_time


@few
@given(repro=anywhere)
def test_an_op_that_is_wrong_only_in_its_graph_is_found_and_said_not_to_fail_alone(repro: Repro) -> None:
    assert found_in(repro, CountingOracle(needs=500)) == (the_culprit(repro), Way.OUTPUTS)


@few
@given(repro=anywhere)
def test_where_watching_makes_the_failure_vanish_windows_find_the_op(repro: Repro) -> None:
    assert found_in(repro, CountingOracle(shows_with=1)) == (the_culprit(repro), Way.WINDOW)


@few
@given(repro=anywhere)
def test_where_windows_show_nothing_either_values_are_watched_one_by_one(repro: Repro) -> None:
    found = found_in(repro, CountingOracle(needs=500, shows_with=3))
    assert found == (the_culprit(repro), Way.OUTPUTS)


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.HANG])
@few
@given(repro=anywhere)
def test_a_failure_that_names_nothing_is_found_by_bisection(kind: Kind, repro: Repro) -> None:
    assert found_in(repro, CountingOracle(kind=kind)) == (the_culprit(repro), Way.WINDOW)


@few
@given(repro=anywhere)
def test_a_crash_that_needs_the_ops_before_it_is_found_by_cutting_the_graph(repro: Repro) -> None:
    needs = len(repro.graph.graph.nodes) // 20
    node, way = found_in(repro, CountingOracle(kind=Kind.CRASH, needs=needs))
    assert way is Way.PIECE
    order = [each.name for each in repro.graph.graph.nodes]
    assert order.index(str(node)) <= max(order.index(the_culprit(repro)), needs)
