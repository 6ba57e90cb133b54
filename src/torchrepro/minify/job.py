"""The search process, from a bundle to the result: load, warm up, establish, search, explain, write, report.

It never runs the user's computation nor compiled code itself: its children do. It has one thread, so that it
can be forked at any moment. (`engine/search/process.py` is how it is started.)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.load import trust_own
from torchrepro.bundle.read import SCRIPT, read_manifest
from torchrepro.engine.baseline import Original, establish, read_original
from torchrepro.engine.jobs import fails_before_code
from torchrepro.engine.oracle import JUDGE, JUDGE_BEFORE_CODE, IsolatedOracle, Oracle
from torchrepro.engine.processes.child import Reporter
from torchrepro.engine.queries import Queries
from torchrepro.engine.search.process import SearchRequest
from torchrepro.engine.search.run_directory import write_json
from torchrepro.engine.search.setup import Stop, isolated_oracle, loaded, use_scratch, warming_up
from torchrepro.engine.store import SqliteStore, put_in_place
from torchrepro.engine.verify_script import settle
from torchrepro.explain import Explanation, explain
from torchrepro.minify.command_oracle import CommandOracle
from torchrepro.minify.problem import Problem, Progress
from torchrepro.minify.registry import Pass, chosen_passes
from torchrepro.minify.run_directory import MinifySettings, RunDirectory, append_to_history, read_history
from torchrepro.minify.search import Found, search
from torchrepro.nouns.errors import SearchStopped
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Minified, OtherFailure, PassRow
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.candidates import first_script, input_names
from torchrepro.script.document import Entry
from torchrepro.script.save_bundle import save_bundle

_SECONDS_BETWEEN_REPORTS = 0.1


def minify(request: SearchRequest, reporter: Reporter) -> dict[str, Any]:
    """The whole job, in order."""
    began = time.monotonic()
    settings = msgspec.convert(request.settings, MinifySettings)
    directory = RunDirectory(Path(request.directory))
    stop = Stop()
    stop.listen()

    reporter.phase("load")
    passes = chosen_passes(settings.passes, settings.skip)
    reporter.send(passes={row.name: row.description for row in passes})
    repro, trusted = loaded(Path(request.bundle), trusted=settings.trusted, own=settings.own)
    with (
        judges_for(repro, settings, stop) as judges,
        SqliteStore(directory.verdicts, best_to=directory.best, also_seen_to=directory.also_seen) as store,
    ):
        # Where a command is asked nothing is compiled here.
        with nullcontext() if settings.oracle else warming_up(request, repro, stop):
            reporter.phase("establish")
            original = _established(repro, judges, directory)
            judges = judges.after(original.verdict)
            reporter.phase("warm")

        reporter.phase("search")
        use_scratch(directory)
        stop.after(settings.time_limit)
        queries = Queries(
            repro,
            original.verdict,
            judges.oracle,
            observer=judges.observer,
            store=store,
            repeats=original.repeats,
            job=judges.job_for(original.verdict),
        )
        problem = Problem(
            queries,
            notify=_notifying(reporter),
            history=read_history(directory.history),
            on_adopted=partial(append_to_history, directory.history),
        )
        _resume(problem, store, directory, trusted)
        attempt = _Attempt(problem, judges, directory, settings, reporter, stop)
        end = attempt.run(passes)
        if not (end.script.reproduces or end.found.stopped) and _recaptured(problem):
            stop.listen()
            reporter.phase("search")
            end = attempt.run(passes)
    found, explanation, final = end
    result = Minified(
        original=request.bundle,
        directory=request.directory,
        bundle=str(directory.minimal),
        script=str(final.path),
        start_ops=problem.start_size.ops,
        start_inputs=problem.start_size.inputs,
        start_elements=problem.start_size.elements,
        ops=problem.best_size.ops,
        inputs=problem.best_size.inputs,
        elements=problem.best_size.elements,
        queries=queries.asked,
        original_runs=original.runs,
        seconds=time.monotonic() - began,
        signature=str(problem.failure.signature),
        reproduces=final.reproduces,
        stopped=found.stopped,
        passes=_rows(problem),
        also_seen=_also_seen(directory),
        explanation=explanation.to_dict(),
        explained=explanation.lines(),
        notes=_notes(original, repro, store, final),
        history=tuple(problem.history),
        scope=settings.scope,
    )
    write_json(directory.result, result.to_dict())
    if result.minimal:
        shutil.rmtree(directory.cache, ignore_errors=True)
    return result.to_dict()


@dataclass(frozen=True, eq=False)
class Judges:
    """The oracle that says what fails, and the observer that looks inside."""

    oracle: Oracle
    observer: IsolatedOracle

    @property
    def is_command(self) -> bool:
        return isinstance(self.oracle, CommandOracle)

    def after(self, baseline: Verdict) -> Judges:
        """Return judges whose timeout follows from what the baseline took."""
        if self.is_command:
            return self  # how long a command takes says nothing about a run here
        observer = self.observer.after(baseline)
        return Judges(observer, observer)

    def job_for(self, baseline: Verdict) -> str:
        """Return the job that judges candidates: if it can, it stops where the baseline would have failed."""
        early = not self.is_command and fails_before_code(baseline)
        return JUDGE_BEFORE_CODE if early else JUDGE


@contextmanager
def judges_for(repro: Repro, settings: MinifySettings, stop: Stop) -> Iterator[Judges]:
    """Ready to be asked; no process and no temporary file is left afterwards."""
    with isolated_oracle(repro, settings.jobs, stop) as isolated:
        if settings.oracle:
            with CommandOracle(settings.oracle, workers=isolated.workers, sleep=stop.sleep) as command:
                yield Judges(command, isolated)
        else:
            yield Judges(isolated, isolated)


class _End(NamedTuple):
    """How one search ended: what it found, what of that matters, and the script for it."""

    found: Found
    explanation: Explanation
    script: FinalScript


@dataclass(frozen=True)
class _Attempt:
    """A search and what comes after it."""

    problem: Problem
    judges: Judges
    directory: RunDirectory
    settings: MinifySettings
    reporter: Reporter
    stop: Stop

    def run(self, passes: Sequence[Pass]) -> _End:
        found = search(self.problem, passes)
        self.reporter.phase("explain")
        explanation = _explained(found, self.problem, self.judges, self.settings)
        self.stop.ignore_interrupts()
        self.reporter.phase("script")
        script = _final_script(
            found, self.problem, self.judges, self.directory.minimal, header=explanation.lines()
        )
        return _End(found, explanation, script)


def _recaptured(problem: Problem) -> bool:
    """Begin again with candidates that go through `torch.compile`, if the original fails in that way as well.

    What is handed straight to the compiler can lose its failure in a script: Dynamo captures the graph once
    more, and its inputs may come in another order.
    """
    original = problem.original
    if original.place is not Place.AFTER_CAPTURE or original.symbols or original.compiler.recapture:
        return False
    return problem.restart_from(replace(original, compiler=replace(original.compiler, recapture=True)))


def _established(repro: Repro, judges: Judges, directory: RunDirectory) -> Original:
    """How the original fails: as an interrupted run has found out, or found out now."""
    original = read_original(directory.original)
    if original is None:
        # What was recorded is about the compiler; a command of the user speaks for itself.
        asked = replace(repro, expected=None) if judges.is_command else repro
        original = establish(asked, judges.oracle)
        write_json(directory.original, msgspec.to_builtins(original))
    return original


def _resume(problem: Problem, store: SqliteStore, directory: RunDirectory, trusted: tuple[str, ...]) -> None:
    """Go on from the best of an interrupted run, if it runs nothing that the user has not vouched for.

    A run directory may come with a bundle of a stranger, who can write there anything.
    """
    if directory.best.exists() and set(trust_own(read_manifest(directory.best))) <= set(trusted):
        former = store.best()
        if former is not None:
            problem.resume_from(*former)


def _notifying(reporter: Reporter) -> Callable[[Progress], None]:
    """Tell the parent where the search stands: every change that matters, else ten times a second."""
    told: list[Any] = [None, 0.0]

    def notify(progress: Progress) -> None:
        telling = (progress.pass_name, progress.best)
        if telling != told[0] or time.monotonic() - told[1] > _SECONDS_BETWEEN_REPORTS:
            told[:] = [telling, time.monotonic()]
            reporter.send(
                progress={
                    "pass": progress.pass_name,
                    "start": progress.start.counts,
                    "best": progress.best.counts,
                    "queries": progress.queries,
                    "known": progress.known,
                }
            )

    return notify


def _explained(found: Found, problem: Problem, judges: Judges, settings: MinifySettings) -> Explanation:
    """What of the result matters. Nothing that goes wrong here may cost the result itself."""
    if found.stopped or judges.is_command or not settings.explain:
        return Explanation()
    queries = Queries(
        found.repro,
        found.verdict,
        judges.oracle,
        observer=judges.observer,
        store=problem.queries.store,
        failure=problem.failure,
        repeats=problem.queries.repeats,
    )
    try:
        return explain(
            queries,
            names=input_names(found.repro) if found.repro.place is not Place.BEFORE_CAPTURE else {},
            script_text=lambda repro, verdict: first_script(repro, verdict).text,
        )
    except SearchStopped as stopped:
        return Explanation(notes=(f"not explained: {stopped}",))
    except Exception as exc:
        return Explanation(notes=(f"not explained: torchrepro itself failed ({exc!r})",))


_HANG_SECONDS = 60.0
"""How long a script that hangs is waited for: a fresh process imports torch first."""


@dataclass(frozen=True, slots=True)
class FinalScript:
    """Where the script is, and whether it was seen to fail as the original does."""

    path: Path
    reproduces: bool
    notes: tuple[str, ...] = ()


def _final_script(
    found: Found, problem: Problem, judges: Judges, target: Path, *, header: tuple[str, ...]
) -> FinalScript:
    """Write the best as a bundle with a script, in the place of a former one, and see it fail once more.

    The script is run in a fresh process, up to `repeats` times where the failure is flaky. If a command is
    the oracle, it is asked about the bundle as it is handed over.
    """
    fresh = target.with_name(f".{target.name}.{new_run_id()}")
    put_in_place(save_bundle(found.repro, fresh, verdict=found.verdict), target)
    if isinstance(judges.oracle, CommandOracle):
        verdict = judges.oracle.verdict_on(target)
        reproduces = problem.failure.shown_by(verdict)
        return FinalScript(target / SCRIPT, reproduces, () if reproduces else (f"the last time: {verdict}",))
    hangs = found.verdict.kind is Kind.HANG
    settled = settle(
        found.repro,
        found.verdict,
        target,
        time_limit=_HANG_SECONDS if hangs else 120.0 + 4 * found.verdict.seconds,
        environ={},  # the environment of this process is the one that the candidates had
        header=header,
        repeats=problem.queries.repeats,
    )
    notes = [settled.script.remark] if settled.script.entry is Entry.INTERNAL else []
    if not settled.reproduces:
        notes += [f"a script was tried, and {verified.how}" for _, verified in settled.tried]
    return FinalScript(settled.path, settled.reproduces, tuple(note for note in notes if note))


def _notes(original: Original, repro: Repro, store: SqliteStore, final: FinalScript) -> tuple[str, ...]:
    rate = f"fails in {original.failing} of {original.runs} runs" if original.is_flaky else ""
    notes = (original.note, rate, *repro.notes, *store.notes, *final.notes)
    return tuple(dict.fromkeys(note for note in notes if note))


def _rows(problem: Problem) -> tuple[PassRow, ...]:
    return tuple(
        PassRow(name=name, **asdict(row)) for name, row in problem.queries.statistics.items() if name
    )


def _also_seen(directory: RunDirectory) -> tuple[OtherFailure, ...]:
    """What fails in other ways, as the bundles say themselves."""
    found = []
    for path in sorted(directory.also_seen.glob("*")):
        if not path.name.startswith("."):
            found.append(OtherFailure(str(path), str(read_manifest(path).expected)))
    return tuple(found)
