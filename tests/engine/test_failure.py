"""Which verdicts show the original's failure, and which show another one."""

from __future__ import annotations

import pytest

from torchrepro.engine.baseline import Failure
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Raised, Stage, Verdict


def differing(*leaves: tuple[str, Difference], kind: Kind = Kind.MISMATCH) -> Verdict:
    found = [
        LeafComparison(path, difference, mismatched=3 if difference is Difference.VALUE else 0)
        for path, difference in leaves
    ]
    return Verdict(kind, comparison=Comparison(tuple(found)))


def raising(message: str, kind: Kind = Kind.COMPILE_ERROR, stage: Stage = Stage.BACKEND) -> Verdict:
    return Verdict(kind, stage, raised=Raised("builtins.RuntimeError", message))


VALUE, STRIDE, SHAPE, DTYPE = Difference.VALUE, Difference.STRIDE, Difference.SHAPE, Difference.DTYPE
NON_FINITE = Difference.NON_FINITE

SAME = [
    (differing(("out", VALUE)), differing(("out[1].x", VALUE))),
    (differing(("out", VALUE), ("grad['w']", VALUE)), differing(("out", VALUE))),
    (differing(("out", VALUE)), differing(("out", VALUE), ("grad['w']", VALUE))),
    (differing(("grad['w']", VALUE)), differing(("grad['x']", VALUE))),
    (differing(("out", VALUE), ("inputs[0]", VALUE)), differing(("inputs[1]", VALUE))),
    (differing(("inputs[0]", VALUE)), differing(("out", VALUE))),
    (differing(("out", VALUE), ("out[1]", STRIDE)), differing(("out", VALUE))),
    (differing(("out", SHAPE)), differing(("out", SHAPE))),
    (
        differing(("out[0]", VALUE), ("out[1]", NON_FINITE), kind=Kind.NON_FINITE),
        differing(("out", NON_FINITE), kind=Kind.NON_FINITE),
    ),
    (Verdict(Kind.CRASH, signal="SIGSEGV"), Verdict(Kind.CRASH, signal="SIGSEGV", stderr_tail="other")),
    (Verdict(Kind.HANG, Stage.BACKEND), Verdict(Kind.HANG)),
    (raising("buf3 of shape (4, 5) is wrong"), raising("buf17 of shape (1, 2) is wrong")),
    (raising("x"), raising("x", stage=Stage.NONE)),
    (Verdict(Kind.OUT_OF_MEMORY), Verdict(Kind.OUT_OF_MEMORY)),
    (Verdict(Kind.MISMATCH), Verdict(Kind.MISMATCH)),
]

OTHER = [
    (differing(("out", VALUE)), Verdict(Kind.PASS)),
    (differing(("out", VALUE)), Verdict(Kind.INVALID)),
    (differing(("out", VALUE)), Verdict(Kind.NOT_COMPARABLE)),
    (differing(("out", VALUE)), differing(("out", NON_FINITE), kind=Kind.NON_FINITE)),
    (differing(("out", NON_FINITE), kind=Kind.NON_FINITE), differing(("out", VALUE))),
    (differing(("out", VALUE)), differing(("grad['w']", VALUE))),
    (differing(("out", VALUE), ("grad['w']", VALUE)), differing(("grad['w']", VALUE))),
    (differing(("grad['w']", VALUE)), differing(("out", VALUE), ("grad['w']", VALUE))),
    (differing(("out", VALUE), ("out[1]", STRIDE)), differing(("out[1]", STRIDE))),
    (differing(("out", VALUE)), differing(("out", SHAPE))),
    (differing(("out", DTYPE)), differing(("out", VALUE))),
    (differing(("out", VALUE)), differing(("inputs[0]", VALUE))),
    (differing(("out", VALUE)), differing(("state['b']", VALUE))),
    (differing(("inputs[0]", VALUE)), differing(("out", SHAPE))),
    (differing(("inputs[0]", VALUE)), differing(("grad['w']", VALUE))),
    (Verdict(Kind.CRASH, signal="SIGSEGV"), Verdict(Kind.CRASH, signal="SIGFPE")),
    (Verdict(Kind.CRASH, signal="SIGSEGV"), Verdict(Kind.HANG)),
    (Verdict(Kind.HANG, Stage.BACKEND), Verdict(Kind.HANG, Stage.CAPTURE)),
    (raising("one thing"), raising("another thing")),
    (raising("x"), raising("x", kind=Kind.RUN_ERROR)),
    (raising("x"), raising("x", stage=Stage.CAPTURE)),
    (Verdict(Kind.OUT_OF_MEMORY), Verdict(Kind.CRASH, signal="SIGKILL")),
]


@pytest.mark.parametrize(("original", "candidate"), SAME)
def test_the_same_failure(original: Verdict, candidate: Verdict) -> None:
    assert Failure.of(original).shown_by(candidate)
    assert Failure.of(original).shown_by(original)


@pytest.mark.parametrize(("original", "candidate"), OTHER)
def test_another_failure(original: Verdict, candidate: Verdict) -> None:
    assert not Failure.of(original).shown_by(candidate)
    assert Failure.of(original).shown_by(original)
