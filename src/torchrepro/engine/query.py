"""Ask an oracle about a few candidates at a time: which is the first, in their order, that fails?

Answers come in any order. One counts as soon as nothing before it can still fail; what is under way then is
ended. Where the failure is flaky, a candidate passes only after several runs, and fails at the first run that
shows the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from torchrepro.engine.failure import Failure
from torchrepro.nouns.errors import HarnessError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

Ask = Callable[[Sequence[Repro]], Generator[tuple[int, Verdict], None, None]]
"""Gives candidates to the oracle; a candidate that stands there twice is run twice."""


@dataclass(eq=False)
class Question:
    """A candidate, and what its runs have said so far. `index` is its place among all that were given."""

    index: int
    candidate: Repro
    key: str
    runs_left: int
    verdict: Verdict | None = None
    """Of the run that shows the failure, else of the last one."""
    fails: bool = False

    @property
    def is_open(self) -> bool:
        return self.runs_left > 0

    def take(self, verdict: Verdict, failure: Failure) -> bool:
        """Take a run into account; whether that decides the question."""
        self.verdict, self.fails = verdict, failure.shown_by(verdict)
        # What eager cannot run it cannot run the next time either.
        decided = self.fails or verdict.kind is Kind.INVALID
        self.runs_left = 0 if decided else self.runs_left - 1
        return not self.is_open


def first_to_fail(
    questions: Sequence[Question],
    failure: Failure,
    ask: Ask,
    *,
    workers: int,
    on_decided: Callable[[Question], None] = lambda question: None,
) -> Question | None:
    """The first that fails. Whatever comes before it has been asked often enough to say that it does not.

    `on_decided` is told of each question as soon as no further run can change its answer.
    """
    while open_ := list(_undecided(questions)):
        # Where a candidate is run several times, workers that have nothing else to do run it as well.
        copies = max(1, workers // len(open_))
        round_ = [question for question in open_ for _ in range(min(copies, question.runs_left))]
        answered = 0
        with closing(ask([question.candidate for question in round_])) as answers:
            for index, verdict in answers:
                question, answered = round_[index], answered + 1
                if question.is_open and question.take(verdict, failure):
                    on_decided(question)
                if not any(_undecided(questions)):
                    break
        if not answered:
            raise HarnessError(f"the oracle was asked about {len(round_)} candidates and answered none")
    return next((question for question in questions if question.fails), None)


def _undecided(questions: Sequence[Question]) -> Iterator[Question]:
    """Those whose answer matters: open, and before the first that is known to fail."""
    for question in questions:
        if question.fails:
            return
        if question.is_open:
            yield question
