"""The ladder from eager to the compiler under test: which stage is the culprit for which answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_compiler import inquiry_of, small_repro

from torchrepro.execute.backends import last_stage_of
from torchrepro.locate.stages import culprit_rung, find_stage
from torchrepro.nouns.repro import Compiler, Place
from torchrepro.nouns.results import Rung
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Raised, Stage, Verdict

BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
STAGES = (Stage.CAPTURE, Stage.AOT, Stage.DECOMPOSITION, Stage.BACKEND)
KINDS = st.sampled_from([Kind.PASS, Kind.MISMATCH, Kind.CRASH, Kind.COMPILE_ERROR, Kind.MISSING_ERROR])


def rungs(*kinds: Kind) -> tuple[Rung, ...]:
    return tuple(
        Rung(*row) for row in zip(BACKENDS[-len(kinds) :], STAGES[-len(kinds) :], kinds, strict=True)
    )


@given(st.lists(KINDS, min_size=1, max_size=4))
def test_the_guilty_rung_begins_the_failing_run_that_ends_at_the_compiler(kinds: list[Kind]) -> None:
    ladder = rungs(*kinds)
    culprit = culprit_rung(ladder)
    if kinds[-1] is Kind.PASS:
        assert culprit is None
        return
    assert culprit is not None
    place = ladder.index(culprit)
    assert all(rung.fails for rung in ladder[place:])
    assert place == 0 or not ladder[place - 1].fails


def test_a_rung_that_differs_alone_blames_nobody() -> None:
    assert culprit_rung(rungs(Kind.PASS, Kind.MISMATCH, Kind.PASS, Kind.PASS)) is None


def test_the_kind_may_change_on_the_way_up() -> None:
    culprit = culprit_rung(rungs(Kind.PASS, Kind.RUN_ERROR, Kind.RUN_ERROR, Kind.CRASH))
    assert culprit is not None
    assert culprit.stage is Stage.AOT


def test_a_rung_that_could_not_be_tested_neither_blames_nor_clears() -> None:
    culprit = culprit_rung(rungs(Kind.PASS, Kind.MISMATCH, Kind.NOT_COMPARABLE, Kind.MISMATCH))
    assert culprit is not None
    assert culprit.stage is Stage.AOT
    culprit = culprit_rung(rungs(Kind.NOT_COMPARABLE, Kind.INVALID, Kind.NOT_COMPARABLE, Kind.MISMATCH))
    assert culprit is not None
    assert culprit.stage is Stage.BACKEND


@pytest.mark.parametrize(
    ("place", "compiler", "asked"),
    [
        (Place.BEFORE_CAPTURE, Compiler(), BACKENDS[:3]),
        (Place.AFTER_CAPTURE, Compiler(), BACKENDS[1:3]),
        (Place.AFTER_CAPTURE, Compiler(recapture=True), BACKENDS[:3]),
        (Place.AFTER_CAPTURE, Compiler("package.module:compile"), BACKENDS[1:3]),
        (Place.AFTER_AOT, Compiler(), BACKENDS[2:3]),
        (Place.EXPORT, Compiler("aot_inductor"), BACKENDS[1:3]),
        (Place.BEFORE_CAPTURE, Compiler("aot_eager"), BACKENDS[:1]),
        (Place.BEFORE_CAPTURE, Compiler("aot_eager_decomp_partition_with_mode"), BACKENDS[:2]),
        (Place.AFTER_CAPTURE, Compiler("aot_eager"), ()),
        (Place.BEFORE_CAPTURE, Compiler("eager"), ()),
    ],
)
def test_only_backends_that_can_tell_something_are_asked(
    place: Place, compiler: Compiler, asked: tuple[str, ...]
) -> None:
    inquiry = inquiry_of(
        lambda question: Kind.MISMATCH if question.backend == compiler.name else Kind.PASS,
        repro=small_repro(place=place, compiler=compiler),
    )
    ladder = find_stage(inquiry)
    assert tuple(rung.backend for rung in ladder.rungs) == (*asked, compiler.name)
    assert ladder.stage is last_stage_of(compiler.name)
    assert inquiry.asked == len(asked)


def test_a_simpler_backend_is_asked_without_the_options_of_the_compiler() -> None:
    compiler = Compiler(mode="max-autotune", options={"max_fusion_size": 1}, dynamic=True)
    inquiry = inquiry_of(lambda question: Kind.MISMATCH, repro=small_repro(compiler=compiler))
    assert find_stage(inquiry).stage is Stage.AOT
    assert [question.repro.compiler for question in inquiry.oracle.asked] == [  # type: ignore[attr-defined]
        Compiler("aot_eager", dynamic=True),
        Compiler("aot_eager_decomp_partition", dynamic=True),
    ]


def test_where_an_error_is_missing_a_backend_that_raises_it_passes() -> None:
    raised = Raised("RuntimeError", "p must be between 0 and 1")

    def verdict_of(kind: Kind) -> Verdict:
        return Verdict(kind, raised=raised)

    inquiry = inquiry_of(
        lambda question: Kind.INVALID if question.backend == "aot_eager" else Kind.MISSING_ERROR,
        verdict=verdict_of(Kind.MISSING_ERROR),
        as_verdict=verdict_of,
    )
    ladder = find_stage(inquiry)
    assert ladder.rungs[0].kind is Kind.PASS
    assert ladder.rungs[0].summary == "raises as eager does"
    assert ladder.stage is Stage.DECOMPOSITION


@pytest.mark.parametrize(
    ("own", "simpler"), [(Kind.COMPILE_ERROR, Kind.MISMATCH), (Kind.MISMATCH, Kind.RUN_ERROR)]
)
def test_a_simpler_backend_that_fails_otherwise_is_not_the_culprit(own: Kind, simpler: Kind) -> None:
    raised = Raised("RuntimeError", "wrong")
    inquiry = inquiry_of(
        lambda question: simpler,
        verdict=Verdict(own, raised=raised),
        as_verdict=lambda kind: Verdict(kind, raised=raised, summary="other"),
    )
    ladder = find_stage(inquiry)
    assert ladder.stage is Stage.BACKEND
    assert [rung.summary for rung in ladder.rungs[:-1]] == ["another failure: other"] * 2


def test_wrong_gradients_of_a_simpler_backend_do_not_explain_a_wrong_output() -> None:
    def differs(part: str) -> Verdict:
        leaf = LeafComparison(part, Difference.VALUE)
        return Verdict(Kind.MISMATCH, comparison=Comparison((leaf,)))

    def ladder(own: str, simpler: str) -> Stage:
        inquiry = inquiry_of(
            lambda question: Kind.MISMATCH, verdict=differs(own), as_verdict=lambda kind: differs(simpler)
        )
        return find_stage(inquiry).stage

    assert ladder("out[0]", "grad[0]") is Stage.BACKEND
    assert ladder("out[0]", "out[0]") is Stage.AOT
    assert ladder("grad[0]", "grad[1]") is Stage.AOT
