"""The search process, from a bundle to the result: load, warm up, establish, search, explain, write, report.

It never runs the user's computation nor compiled code itself: its children do. It has one thread, so that it
can be forked at any moment. (`engine/search/process.py` is how it is started.)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id, seal_again
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import SCRIPT, read_manifest
from torchrepro.engine.baseline import RUNS, Original, establish, read_original, recorded_here
from torchrepro.engine.jobs import fails_before_code
from torchrepro.engine.oracle import JUDGE, JUDGE_BEFORE_CODE, Oracle
from torchrepro.engine.processes.child import Reporter
from torchrepro.engine.queries import Queries
from torchrepro.engine.search.process import SearchRequest
from torchrepro.engine.search.run_directory import write_json
from torchrepro.engine.search.setup import (
    SCRIPT_PROCESSES,
    Stop,
    Timeline,
    isolated_oracle,
    loaded,
    use_scratch,
    warming_up,
)
from torchrepro.engine.store import SqliteStore, put_in_place
from torchrepro.engine.verify_script import FreshProcesses, settle
from torchrepro.explain import Explanation, explain
from torchrepro.minify.command_oracle import CommandOracle
from torchrepro.minify.problem import Problem
from torchrepro.minify.registry import Pass, chosen_passes, search
from torchrepro.minify.run_directory import MinifySettings, RunDirectory, append_to_history, read_history
from torchrepro.minify.trust_block import trust_block
from torchrepro.nouns.errors import SearchStopped
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Minified, OtherFailure, PassRow
from torchrepro.nouns.verdict import Kind
from torchrepro.script.candidates import first_script, input_names
from torchrepro.script.document import Script, with_facts
from torchrepro.script.save_bundle import save_bundle

_SECONDS_BETWEEN_REPORTS = 0.1
_HANG_SECONDS = 60.0
"""Timeout of a script that hangs: a fresh process imports torch first."""


def minify(request: SearchRequest, reporter: Reporter) -> dict[str, Any]:
    """Run the search process from a bundle to the result; return the result as a dict."""
    timeline = Timeline(reporter, request.asked)
    settings = msgspec.convert(request.settings, MinifySettings)
    directory = RunDirectory(Path(request.directory))
    stop = Stop()
    stop.listen()

    timeline.phase("load")
    passes = chosen_passes(settings.passes, settings.skip)
    reporter.send(passes={row.name: row.description for row in passes})
    repro = loaded(Path(request.bundle), timeline, trusted=settings.trusted, jobs=settings.jobs)
    with (
        isolated_oracle(
            repro, settings.jobs, stop, timeline, rehearse=request.rehearse, channel=request.channel
        ) as isolated,
        CommandOracle(settings.oracle, workers=isolated.workers, sleep=stop.sleep)
        if settings.oracle
        else nullcontext() as command,
        SCRIPT_PROCESSES as processes,
        SqliteStore(directory.verdicts, best_to=directory.best, also_seen_to=directory.also_seen) as store,
    ):
        # With a command as the oracle nothing is compiled here, and its time tells nothing about a run.
        with nullcontext() if command else warming_up(request, repro, stop):
            timeline.phase("establish")
            original = _known(request, directory) or _established(repro, command or isolated, directory)
            observer = isolated if command else isolated.after(original.verdict)
            oracle: Oracle = command or observer
            timeline.phase("warm")

        timeline.phase("search")
        use_scratch(directory)
        stop.after(settings.time_limit)
        early = not command and fails_before_code(original.verdict)
        queries = Queries(
            repro,
            original.verdict,
            oracle,
            observer=observer,
            store=store,
            repeats=original.repeats,
            job=JUDGE_BEFORE_CODE if early else JUDGE,
        )
        problem = Problem(
            queries,
            notify=_notifying(reporter),
            history=read_history(directory.history),
            on_adopted=partial(append_to_history, directory.history),
            establish=None if original.runs else partial(_established, repro, oracle, directory),
        )
        # A run directory may come with somebody else's bundle and contain anything: the best of an
        # interrupted run counts only if it runs nothing that the user has not trusted.
        if directory.best.exists() and set(names_it_runs(read_manifest(directory.best))) <= set(
            settings.trusted
        ):
            former = store.best()
            if former is not None:
                problem.resume_from(*former)
        attempt = partial(_attempt, problem, passes, oracle, directory, timeline, stop, processes)
        stopped, final = attempt()
        if not (final.reproduces or stopped) and _recaptured(problem):
            stop.listen()
            timeline.phase("search")
            stopped, final = attempt()
        if final.reproduces:
            reporter.send(script=str(final.path))
        verified_after = timeline.seconds
        original = queries.baseline or original
        explanation, asked_first = Explanation(), tuple[str, ...]()
        if settings.explain and not (stopped or command):
            timeline.phase("explain")
            explanation = _explained(problem, oracle)
            asked_first = trust_block(problem, observer, Path(request.bundle), original)
        stop.ignore_interrupts()
        final.explain((*explanation.lines(), *asked_first), stranger=problem.best.stranger)
    if problem.best is not repro and not directory.original.exists():
        # For a later `locate`: what fails in the result fails in the original.
        write_json(directory.original, msgspec.to_builtins(original))
    notes = (*original.notes, *repro.notes, *store.notes, *final.notes)
    statistics = queries.statistics.items()
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
        seconds=timeline.seconds,
        signature=str(problem.failure.signature),
        reproduces=final.reproduces,
        verified_after=verified_after,
        timeline=tuple(timeline.moments),
        stopped=stopped,
        passes=tuple(PassRow(name=name, **asdict(row)) for name, row in statistics if name),
        also_seen=tuple(
            OtherFailure(str(path), str(read_manifest(path).expected))
            for path in sorted(directory.also_seen.glob("*"))
            if not path.name.startswith(".")
        ),
        explanation=explanation.to_dict(),
        explained=explanation.lines(),
        notes=tuple(dict.fromkeys(note for note in notes if note)),
        history=tuple(problem.history),
        scope=settings.scope,
    )
    write_json(directory.result, result.to_dict())
    if result.minimal and not request.stays:
        shutil.rmtree(directory.cache, ignore_errors=True)
    return result.to_dict()


def _known(request: SearchRequest, directory: RunDirectory) -> Original | None:
    """Return how the original fails, from an interrupted run or from its record; None if it has to be run."""
    found = read_original(directory.original)
    if found is None and request.recorded:
        found = recorded_here(read_manifest(Path(request.bundle)))
    return found


def _established(repro: Repro, oracle: Oracle, directory: RunDirectory) -> Original:
    """Run the original, and keep how it fails for a search that continues this one."""
    # The recorded failure is the compiler's; a command of the user defines its own.
    asked = replace(repro, expected=None) if isinstance(oracle, CommandOracle) else repro
    original = establish(asked, oracle)
    write_json(directory.original, msgspec.to_builtins(original))
    return original


def _attempt(
    problem: Problem,
    passes: Sequence[Pass],
    oracle: Oracle,
    directory: RunDirectory,
    timeline: Timeline,
    stop: Stop,
    processes: FreshProcesses,
) -> tuple[str, FinalScript]:
    """Search, once more if the failure turns out to be flaky; return why it stopped, and the script."""
    processes.start_ahead(problem.failure.signature.kind)
    while True:
        repeats = problem.queries.repeats
        stopped = search(problem, passes)
        if stopped or isinstance(oracle, CommandOracle):
            stop.ignore_interrupts()  # what is left is to verify the result
        timeline.phase("script")
        final = _final_script(problem, oracle, directory.minimal, processes, measure=not stopped)
        if stopped or problem.queries.repeats == repeats:
            break
        stop.listen()
        timeline.phase("search")
    timeline.mark("script run", problem.queries.asked)
    return stopped, final


def _recaptured(problem: Problem) -> bool:
    """Restart with candidates that go through `torch.compile`, if the original fails in that way as well.

    A graph passed directly to the backend may not fail in a script: Dynamo captures it once more, and its
    inputs may come in another order.
    """
    original = problem.original
    if original.place is not Place.AFTER_CAPTURE or original.symbols or original.compiler.recapture:
        return False
    return problem.restart_from(replace(original, compiler=replace(original.compiler, recapture=True)))


def _notifying(reporter: Reporter) -> Callable[[Problem], None]:
    """Return a callback that reports progress to the parent: at each new pass or best, else every 0.1 s."""
    told: list[Any] = [None, 0.0]

    def notify(problem: Problem) -> None:
        queries = problem.queries
        telling = (queries.label, problem.best_size)
        if telling != told[0] or time.monotonic() - told[1] > _SECONDS_BETWEEN_REPORTS:
            told[:] = [telling, time.monotonic()]
            reporter.send(
                progress={
                    "pass": queries.label,
                    "start": problem.start_size.counts,
                    "best": problem.best_size.counts,
                    "queries": queries.asked,
                    "known": sum(row.known for row in queries.statistics.values()),
                }
            )

    return notify


def _explained(problem: Problem, oracle: Oracle) -> Explanation:
    """Return what of the best matters. An error here must not lose the result itself."""
    best, known = problem.best, problem.queries
    queries = Queries(
        best,
        problem.best_verdict,
        oracle,
        observer=known.observer,
        store=known.store,
        failure=known.failure,
        repeats=known.repeats,
    )
    try:
        return explain(
            queries,
            names=input_names(best) if best.place is not Place.BEFORE_CAPTURE else {},
            script_text=lambda repro, verdict: first_script(repro, verdict).text,
        )
    except SearchStopped as stopped:
        return Explanation(notes=(f"not explained: {stopped}",))
    except Exception as exc:
        return Explanation(notes=(f"not explained: torchrepro itself failed ({exc!r})",))


@dataclass(frozen=True, slots=True)
class FinalScript:
    """Where the script is, and whether it was seen to fail as the original does."""

    path: Path
    reproduces: bool
    notes: tuple[str, ...] = ()
    script: Script | None = None
    """None for that of the bundle, which a command has judged."""

    def explain(self, facts: Sequence[str], *, stranger: bool) -> None:
        """Add to the docstring what was found out after the script was written."""
        if self.script is not None and facts:
            self.path.write_text(with_facts(self.script, facts).text, encoding="utf-8")
            seal_again(self.path.parent, sign=not stranger)


def _final_script(
    problem: Problem, oracle: Oracle, target: Path, processes: FreshProcesses, *, measure: bool
) -> FinalScript:
    """Write the best as a bundle with a script, in place of a former one, and check that it still fails.

    The script is run in a fresh process, up to `repeats` times where the failure is flaky. If a command is
    the oracle, it is run on the final bundle.
    """
    best, verdict = problem.best, problem.best_verdict

    def save() -> None:
        fresh = target.with_name(f".{target.name}.{new_run_id()}")
        put_in_place(save_bundle(best, fresh, verdict=verdict), target)
        if measure:
            with suppress(SearchStopped):  # the script is verified all the same
                problem.measure_flakiness(RUNS - 1)  # the script is another run

    if isinstance(oracle, CommandOracle):
        save()
        last = oracle.verdict_on(target)
        reproduces = problem.failure.shown_by(last)
        return FinalScript(target / SCRIPT, reproduces, () if reproduces else (f"the last time: {last}",))
    settled = settle(
        best,
        verdict,
        target,
        time_limit=_HANG_SECONDS if verdict.kind is Kind.HANG else 120.0 + 4 * verdict.seconds,
        processes=processes,
        repeats=problem.queries.repeats,
        meanwhile=save,
    )
    if measure and not settled.reproduces:
        with suppress(SearchStopped):
            problem.measure_flakiness()
    seal_again(target, sign=not best.stranger)
    notes = [settled.script.remark]
    if not settled.reproduces:
        notes += [f"a script was tried, and {verified.how}" for _, verified in settled.tried]
    return FinalScript(settled.path, settled.reproduces, tuple(filter(None, notes)), settled.script)
