"""Run one job in one fresh process: its result, the error it reports, or the verdict its death amounts to.

The child reports over a pipe of its own, so that whatever the user's model prints cannot be mistaken for an
answer. It leads a process group that is killed as a whole: compilers start compilers. A process that reports
has the last word; one that dies tells by its phase whether the compiler can be blamed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import msgspec
import platformdirs

from torchrepro.engine.processes.child import Child, listen, reports_and_output
from torchrepro.engine.processes.executor import job_named
from torchrepro.engine.processes.reports import Outcome, Reporter
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import telling_environment
from torchrepro.nouns.verdict import Kind, Stage, Verdict


def compiler_environment(recorded: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a judging process.

    Inductor's caches go to a directory of our own and the caches of whole graphs are off: a hit in either can
    hide the failure. What is shared there is keyed by the source of a kernel, and the precompiled header,
    which costs ten seconds, stays warm. Of a recorded environment only switches are taken, no program to run.
    """
    chosen = {
        name: value
        for name, value in telling_environment(recorded or {}).items()
        if name not in ("CC", "CXX") and "/" not in value
    }
    return {
        **chosen,
        "TORCHINDUCTOR_CACHE_DIR": str(cache_directory() / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # The judge watches its own compilations itself.
        "TORCHREPRO_WATCH": "0",
    }


def cache_directory() -> Path:
    """`TORCHREPRO_CACHE_DIR`, else the user's cache directory."""
    chosen = os.environ.get("TORCHREPRO_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("torchrepro", appauthor=False)


def run_isolated(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Outcome:
    """Run a named job in a fresh interpreter (`worker.py`) and wait for it, at most `time_limit` seconds."""
    started = time.monotonic()
    deadline = started + time_limit
    with tempfile.TemporaryFile() as request:
        request.write(json.dumps({"job": job, "payload": payload}).encode())
        request.seek(0)
        child = start_interpreter(
            "torchrepro.engine.processes.fresh_process", environ, stdin=request, on_phase=on_phase
        )
        try:
            while (outcome := child.outcome(started, deadline)) is None:
                listen([child], deadline)
        finally:
            child.end()
        return outcome


def start_interpreter(
    module: str,
    environ: Mapping[str, str] | None = None,
    *,
    arguments: tuple[str, ...] = (),
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    pass_fds: tuple[int, ...] = (),
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Child:
    """`python -m module REPORT_FD ARGUMENTS` as the leader of a group; what it prints goes to a file."""
    with reports_and_output() as (reading_end, writing_end, output):
        # -P: a file called random.py in the user's directory must not replace the standard library's.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(writing_end), *arguments],
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writing_end, *pass_fds),
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        return Child(process, reading_end, output, on_phase)


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    reporter = Reporter(descriptor)
    request = json.load(sys.stdin)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    reporter.answer(lambda: job_named(request["job"])(request["payload"], reporter.phase))
    # No interpreter teardown: a library that crashes at exit must not overwrite the answer.
    os._exit(0)


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
    """Raise what the child reported as an error: the user's to fix, or ours."""
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


if __name__ == "__main__":
    main()
