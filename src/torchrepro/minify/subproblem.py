"""A search on the side: in a repro that is larger than the best, for one in it that is smaller."""

from __future__ import annotations

from dataclasses import replace

from torchrepro.engine.store import Store
from torchrepro.minify.problem import Problem, Progress
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


def aside(problem: Problem, larger: Repro) -> Problem:
    """The problem of a larger repro that is taken to fail as well.

    It knows what the problem knows, and what it asks is put down to the same pass. What it finds is only the
    problem's best once that accepts it.
    """

    def notify(progress: Progress) -> None:
        problem.notify(replace(progress, start=problem.start_size, best=problem.best_size))

    side = Problem(
        larger,
        problem.best_verdict,
        problem.oracle,
        repeats=problem.repeats,
        deadline=problem.deadline,
        observer=problem.observer,
        notify=notify,
    )
    # Only now: what the larger one does has not been asked, so it is not to be remembered.
    side.store = _Beside(problem.store)
    side.failure = problem.failure
    side.statistics, side.pass_name, side.began = problem.statistics, problem.pass_name, problem.began
    return side


class _Beside:
    """A store in which the best stays what it is."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def verdict(self, key: str) -> Verdict | None:
        return self._store.verdict(key)

    def remember(self, key: str, verdict: Verdict, *, pass_name: str) -> None:
        self._store.remember(key, verdict, pass_name=pass_name)

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        """Not the best of the search."""

    def also_seen(self, repro: Repro, verdict: Verdict) -> None:
        self._store.also_seen(repro, verdict)
