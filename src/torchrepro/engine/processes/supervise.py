"""Turn the way a judging process ended into a verdict.

A process that reports has the last word. One that dies tells by its phase whose fault it is: before the
compiler ran, nothing can be said about the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from torchrepro.engine.processes.fresh_process import run_isolated
from torchrepro.engine.processes.outcome import Outcome
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind, Stage, Verdict

_COMPILED_PHASES = ("compile", "run", "compare")
# Of C++ code and of libgomp, which end the process where Python raises MemoryError.
_LAST_WORDS = ("std::bad_alloc", "libgomp: Out of memory")


def judged_in_isolation(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Verdict:
    """Run a job that returns a verdict. If the float64 reference kills it, judge again without one."""
    outcome = run_isolated(job, payload, time_limit=time_limit, environ=environ, on_phase=on_phase)
    if outcome.died_in_reference:
        death = "did not finish" if outcome.timed_out else f"died ({_death(outcome)})"
        again = run_isolated(
            job, {**payload, "fp64": False}, time_limit=time_limit, environ=environ, on_phase=on_phase
        )
        return verdict_of(again, time_limit).with_notes(f"no float64 reference: its run {death}")
    return verdict_of(outcome, time_limit)


def result_in_isolation(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    unfinished: str,
    next_step: str = "raise --time-limit",
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Any:
    """Run a job in a fresh process and return its answer; if none comes, raise `unfinished` and why."""
    outcome = run_isolated(job, payload, time_limit=time_limit, environ=environ, on_phase=on_phase)
    raise_reported(outcome)
    if outcome.result is None:
        reason = f"no answer after {time_limit:g} s" if outcome.timed_out else f"it died ({_death(outcome)})"
        raise TorchReproError(f"{unfinished}: {reason}", next_step=next_step)
    return outcome.result


def verdict_of(outcome: Outcome, time_limit: float) -> Verdict:
    """The verdict a process reported, or the one its death amounts to."""
    if outcome.result is not None:
        verdict = msgspec.convert(outcome.result, Verdict)
        return replace(verdict, seconds=outcome.seconds)
    short_of_memory = _ran_out_of_memory(outcome)
    if not short_of_memory:
        raise_reported(outcome)
    evidence = {"stderr_tail": outcome.output_tail, "seconds": outcome.seconds}
    blaming_compiled = outcome.phase in _COMPILED_PHASES
    if outcome.timed_out:
        if not blaming_compiled:
            raise TorchReproError(
                f"nothing could be tested: {_doing(outcome.phase)} took longer than {time_limit:g} s",
                next_step="raise --time-limit",
            )
        return Verdict(
            Kind.HANG,
            Stage.BACKEND,
            summary=f"no end after {time_limit:g} s ({_doing(outcome.phase)})",
            **evidence,  # type: ignore[arg-type]
        )
    if not blaming_compiled:
        return Verdict(
            Kind.INVALID,
            summary=f"{_doing(outcome.phase)} died ({_death(outcome)}), before any compiler ran",
            signal=outcome.signal,
            **evidence,  # type: ignore[arg-type]
        )
    if short_of_memory:
        return Verdict(
            Kind.OUT_OF_MEMORY,
            Stage.BACKEND,
            summary=f"{_death(outcome)}, most likely for memory ({_doing(outcome.phase)})",
            signal=outcome.signal,
            **evidence,  # type: ignore[arg-type]
        )
    return Verdict(
        Kind.CRASH,
        Stage.BACKEND,
        summary=f"{_death(outcome)} ({_doing(outcome.phase)})",
        signal=outcome.signal or f"exit {outcome.exit_code}",
        **evidence,  # type: ignore[arg-type]
    )


def _ran_out_of_memory(outcome: Outcome) -> bool:
    """Killed by the system, or it says so itself; under a limit (`limits.py`) it can end in each of these."""
    if outcome.error is not None:
        return outcome.error["kind"] == "memory"
    if outcome.timed_out:
        return False
    said_so = any(words in outcome.output_tail for words in _LAST_WORDS)
    return outcome.signal == "SIGKILL" or (said_so and outcome.signal in ("SIGABRT", ""))


def raise_reported(outcome: Outcome) -> None:
    """Raise what the child reported as an error: the user's to mend, or ours."""
    error = outcome.error
    if error is None:
        return
    if error["kind"] == "memory":
        raise TorchReproError(
            f"there was not enough memory for {_doing(outcome.phase)} ({error['fact']})",
            next_step="try it on a larger machine, or with smaller inputs",
        )
    if error["kind"] == "user":
        exc = TorchReproError(error["fact"], next_step=error["next_step"])
        exc.add_note(error["traceback"])
        raise exc
    raise HarnessError(f"torchrepro itself failed ({error['fact']})\n{error['traceback']}")


def _death(outcome: Outcome) -> str:
    if outcome.error is not None:
        return outcome.error["fact"]
    return outcome.signal or f"exit code {outcome.exit_code}"


def _doing(phase: str) -> str:
    return {
        "start": "starting the process",
        "build": "building the model",
        "load": "loading the bundle",
        "eager": "the eager run",
        "reference": "the float64 run",
        "compile": "compiling",
        "run": "running the compiled function",
        "compare": "comparing",
    }.get(phase, phase)
