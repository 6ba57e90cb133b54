from __future__ import annotations

import shutil
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import FAILS, LOST, NEW, OLD, PASSES, MadeUp, write_bundle
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.cli.corpus_output import Files, Wanted, policy_of, show_findings
from torchrepro.corpus.findings import State, Summary
from torchrepro.corpus.index import Corpus
from torchrepro.corpus.replays import Plan, Request, balanced, replay_corpus
from torchrepro.corpus.runs import Runs, warning_about_hosts
from torchrepro.corpus.survey import Survey
from torchrepro.engine.other_python import Replayed

pytestmark = pytest.mark.usefixtures("one_toolchain")


@pytest.fixture
def corpus(tmp_path: Path, template: Path):
    with Corpus(tmp_path / "corpus", create=True) as opened:
        for number in range(6):
            opened.add(write_bundle(tmp_path / f"b{number}", number, template))
        yield opened


def states(corpus: Corpus, run: object) -> dict[State, int]:
    return summary(corpus, run).states


def summary(corpus: Corpus, run: object) -> Summary:
    return Survey(corpus, [run]).summary(0.0)  # type: ignore[list-item]


def test_everything_is_replayed_and_a_pass_is_confirmed_by_a_second(corpus: Corpus):
    made_up = MadeUp(lambda request, number: PASSES)
    run, progress = replay_corpus(corpus, Plan((NEW,), jobs=2), executor=made_up)
    assert states(corpus, run) == {State.FIXED: 6}
    assert (progress.replays, progress.done, progress.total) == (12, 6, 6)


def test_the_same_code_is_not_run_again_unless_asked(corpus: Corpus):
    replay_corpus(corpus, Plan((OLD,)), executor=MadeUp(lambda request, number: FAILS))
    gated = MadeUp(lambda request, number: replace(FAILS, code="a"))
    run, _ = replay_corpus(corpus, Plan((NEW,)), executor=gated)
    assert all(only_code for _, _, only_code in gated.asked)
    assert summary(corpus, run).not_run == 6
    assert states(corpus, run) == {State.STILL_FAILS: 6}
    everything = MadeUp(lambda request, number: FAILS)
    replay_corpus(corpus, Plan((NEW,), run_all=True), executor=everything)
    assert not any(only_code for _, _, only_code in everything.asked)


def test_the_same_code_with_other_headers_of_torch_is_run(corpus: Corpus):
    class Cpp(MadeUp):
        def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
            answer = super().submit(function, *args, **more).result()
            future: Future[Any] = Future()
            future.set_result(replace(answer, code=f"#include <cpp_prefix.h>\n{answer.code}"))
            return future

    old, new = replace(OLD, headers="1"), replace(NEW, headers="2")
    replay_corpus(corpus, Plan((old,)), executor=Cpp(lambda request, number: FAILS))
    fixed = Cpp(lambda request, number: PASSES)
    run, _ = replay_corpus(corpus, Plan((new,)), executor=fixed)
    assert states(corpus, run) == {State.FIXED: 6}
    kept, _ = replay_corpus(corpus, Plan((new,)), executor=Cpp(lambda request, number: FAILS))
    assert summary(corpus, kept).not_run == 6


def test_an_outcome_of_fewer_runs_than_asked_for_is_not_kept(corpus: Corpus):
    replay_corpus(corpus, Plan((OLD,)), executor=MadeUp(lambda request, number: FAILS))
    repeated = MadeUp(lambda request, number: FAILS if number else PASSES)
    run, progress = replay_corpus(corpus, Plan((NEW,), repeat=3), executor=repeated)
    assert (summary(corpus, run).not_run, progress.replays) == (0, 18)
    assert states(corpus, run) == {State.FLAKY: 6}
    assert next(Survey(corpus, [run]).findings()).detail == "2 of 3 runs fail"
    assert Survey(corpus, [run]).buckets()[0].signature == "2 of 3 runs fail: mismatch"


def test_what_changed_runs_first(corpus: Corpus):
    replay_corpus(corpus, Plan((OLD,)), executor=MadeUp(lambda request, number: FAILS))
    chosen = sorted(entry.id for entry in corpus.entries())[4]

    def answer(request: Request, number: int) -> Replayed:
        code = "b" if request.bundle == chosen else ""
        return replace(FAILS, code=code)

    made_up = MadeUp(answer)
    replay_corpus(corpus, Plan((NEW,)), executor=made_up)
    runs = [bundle for bundle, _, only_code in made_up.asked if not only_code]
    assert runs[0] == chosen
    assert len(runs) == 6  # code that is not known does not count as unchanged


def test_a_baseline_that_was_killed_is_no_baseline(corpus: Corpus):
    made_up = MadeUp(lambda request, number: LOST if request.side == 0 else FAILS)
    run, _ = replay_corpus(corpus, Plan((OLD, NEW)), executor=made_up)
    assert states(corpus, run) == {State.CANNOT_RUN: 6}
    assert "baseline: its process died" in next(Survey(corpus, [run]).findings()).detail
    (row,) = Survey(corpus, [run]).buckets()
    assert "baseline: its process died" in row.signature  # the table says why


@pytest.mark.parametrize(
    ("lost", "fail_on", "code"),
    [(6, "regressed", 125), (6, "cannot-run", 1), (6, "none", 0), (5, "regressed", 0)],
)
def test_a_run_in_which_nothing_could_run_is_no_success(
    corpus: Corpus, lost: int, fail_on: str, code: int, capsys: pytest.CaptureFixture[str]
):
    dead = {entry.id for entry in list(corpus.entries())[:lost]}
    made_up = MadeUp(lambda request, number: LOST if request.bundle in dead else FAILS)
    run, _ = replay_corpus(corpus, Plan((NEW,)), executor=made_up)
    assert show_findings(Survey(corpus, [run]), Wanted(policy_of(fail_on), Files()), 0.0) == code
    assert f"{lost} cannot run" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_run_continues_where_it_stopped(corpus: Corpus):
    with pytest.raises(KeyboardInterrupt):
        replay_corpus(corpus, Plan((NEW,)), executor=MadeUp(lambda request, number: FAILS, stop_at=4))
    again = MadeUp(lambda request, number: FAILS)
    run, _ = replay_corpus(corpus, Plan((NEW,)), executor=again)
    assert 0 < len(again.asked) < 6
    assert states(corpus, run) == {State.STILL_FAILS: 6}
    assert "continued" in corpus.notes[-1]
    fresh = MadeUp(lambda request, number: FAILS)
    replay_corpus(corpus, Plan((NEW,), run_all=True), executor=fresh, fresh=True)
    assert len(fresh.asked) == 6


def test_a_lost_index_does_not_lose_the_last_run(corpus: Corpus):
    made_up = MadeUp(lambda request, number: FAILS)
    replay_corpus(corpus, Plan((NEW,)), executor=made_up)
    corpus.database.close()
    (corpus.directory / "index.sqlite").unlink()
    with Corpus(corpus.directory) as again:
        assert states(again, Runs(again).latest()[0]) == {State.STILL_FAILS: 6}


def test_shards_together_are_the_corpus_and_are_merged_into_one_answer(corpus: Corpus, tmp_path: Path):
    places = [tmp_path / "s1", tmp_path / "s2"]
    for place in places:
        shutil.copytree(corpus.directory, place)
    for number, place in enumerate(places, start=1):
        with Corpus(place) as shard:
            made_up = MadeUp(lambda request, count: FAILS, host=f"host{number}")
            replay_corpus(shard, Plan((NEW,), shard=(number, 2)), executor=made_up)
    runs = Runs(corpus)
    for place in places:
        corpus.merge(place)
        runs.merge(place)
    survey = Survey(corpus, runs.latest())
    assert survey.summary(0.0).states == {State.STILL_FAILS: 6}
    assert {finding.host for finding in survey.findings()} == {"host1", "host2"}


@given(st.dictionaries(st.text("abcdef", min_size=1), st.floats(0, 100), min_size=1), st.integers(1, 5))
def test_shards_are_disjoint_complete_and_balanced(seconds: dict[str, float], count: int):
    shards = [balanced(list(seconds.items()), index, count) for index in range(1, count + 1)]
    assert sorted(each for shard in shards for each in shard) == sorted(seconds)
    known = sorted(value for value in seconds.values() if value)
    usual = known[len(known) // 2] if known else 1.0
    loads = [sum(seconds[each] or usual for each in shard) for shard in shards]
    assert max(loads) - min(loads) <= max([*seconds.values(), usual, 1.0]) + 1e-6
    reordered = list(reversed(seconds.items()))
    assert balanced(reordered, 1, count) == shards[0]


def test_one_host_with_most_failures_is_suspected():
    assert "suspect that host" in warning_about_hosts({"bad": (20, 25), "good": (1, 30)})
    assert not warning_about_hosts({"one": (10, 25), "two": (11, 30)})
    assert not warning_about_hosts({"only": (50, 50)})
