"""Run jobs in a fresh process: a result, the error it reports, or the verdict derived from its death.

A reported answer decides; if the process dies, its phase decides whether the compiler is the culprit.
Started as `python -m` this module with the descriptor for its reports, it runs a job for each line of its
standard input.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec
import platformdirs

from torchrepro.bundle.safe_state import safe_environment
from torchrepro.engine.processes.child import (
    Child,
    OnMessage,
    Outcome,
    Reporter,
    popen,
    reports_and_output,
)
from torchrepro.engine.processes.signals import start_afresh, undisturbed
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind, Stage, Verdict

if TYPE_CHECKING:
    from torchrepro.engine.sandbox.chosen import Sandbox

Answer = TypeVar("Answer")
_MODULE = "torchrepro.engine.processes.fresh_process"
AT_END: list[Callable[[], None]] = []
"""Called when the process serves no more jobs, because its parent closed the pipe or died."""
_COMPILED_PHASES = ("compile", "run", "compare")
# Printed by C++ code and by libgomp, which abort where Python raises MemoryError.
_MEMORY_MESSAGES = ("std::bad_alloc", "libgomp: Out of memory")
_DOING = {
    "start": "starting the process",
    "build": "building the model",
    "load": "loading the bundle",
    "eager": "the eager run",
    "reference": "the float64 run",
    "compile": "compiling",
    "run": "running the compiled function",
    "compare": "comparing",
    "rounding": "running eager with rounding noise",
}


def compiler_environment(recorded: Mapping[str, str] | None = None, *, own: bool = True) -> dict[str, str]:
    """Return the environment variables for a judging process.

    Inductor's caches go to torchrepro's own directory and the caches of whole graphs are off: a hit in either
    can hide the failure. What is shared there is keyed by the source of a kernel, and the precompiled header,
    which costs ten seconds, stays warm. Of a recorded environment only switches are used, no programs to run;
    if it is not the user's `own`, only values that are harmless (`bundle/safe_state.py`).
    """
    chosen, _ = safe_environment(recorded or {}, own=own)
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
    """Return `TORCHREPRO_CACHE_DIR`, else the user's cache directory."""
    chosen = os.environ.get("TORCHREPRO_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("torchrepro", appauthor=False)


def run_isolated(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
    on_message: OnMessage = lambda message: None,
    on_start: Callable[[int], None] = lambda pid: None,
    pass_fds: tuple[int, ...] = (),
    inner_fds: tuple[int, ...] = (),
    sandbox: Sandbox | None = None,
    start: Callable[[Mapping[str, str]], AbstractContextManager[Child]] | None = None,
    python: str = "",
) -> Outcome:
    """Run `package.module:function(payload, phase)` in a fresh interpreter and wait for it.

    `on_start` is called with its pid, for `os.kill`, `on_message` with each report, and `on_phase` with each
    phase's name. In a `sandbox` the environment is not inherited, and only the process around it has
    `pass_fds`; the process inside has `inner_fds`. `start` makes the process from its environment, in place
    of a fresh interpreter (`python`; by default this one).
    """

    def take(message: Mapping[str, Any]) -> None:
        on_message(message)
        if "phase" in message:
            on_phase(message["phase"])

    with (
        start(environ or {})
        if start
        else start_interpreter(environ, pass_fds, sandbox, inner_fds=inner_fds, python=python) as child
    ):
        on_start(child.process.pid if sandbox is None else sandbox.signalled(child.process.pid))
        child.begin(time_limit, on_message=take)
        child.ask({"job": job, "payload": payload, "environ": dict(environ or {}) if start else {}})
        return child.wait()


def start_interpreter(
    environ: Mapping[str, str] | None = None,
    pass_fds: tuple[int, ...] = (),
    sandbox: Sandbox | None = None,
    inner_fds: tuple[int, ...] = (),
    python: str = "",
) -> Child:
    """Start a fresh process that waits for jobs, confined if a sandbox is given."""
    reading_end, requests = os.pipe()
    try:
        with reports_and_output() as (reports, writing_end, output):
            # -P: a file called random.py in the user's directory must not replace the standard library's.
            command = [python or sys.executable, "-P", "-m", _MODULE, str(writing_end)]
            chosen = environ or {}
            inherited = (writing_end, *pass_fds, *inner_fds)
            start = partial(popen, output=output, stdin=reading_end, pass_fds=inherited)
            if sandbox is None:
                process = start(command, env={**os.environ, **chosen})
            else:
                with undisturbed():  # bubblewrap inherits that: an interrupt is for the process inside
                    process = start(
                        sandbox.command(command, reports=writing_end, passed=inner_fds),
                        env=sandbox.environment(chosen),
                    )
            return Child(process, output, reports, requests)
    except BaseException:
        os.close(requests)
        raise
    finally:
        os.close(reading_end)


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    start_afresh()
    reporter = Reporter(descriptor)
    requests = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    serve(requests, reporter)


def serve(requests: int, reporter: Reporter) -> NoReturn:
    """Run a job for each line of a pipe, and exit when the parent closes it or dies.

    A silent job is not answered, and its error ends the process.
    """
    try:
        with os.fdopen(requests) as lines:
            for line in lines:
                request = json.loads(line)
                os.environ.update(request.get("environ", {}))
                job = partial(_run, request["job"], request["payload"], reporter)
                if request.get("silent"):
                    job()
                else:
                    reporter.answer(job)
                _forget()
    finally:
        for clean_up in AT_END:
            clean_up()
    # No interpreter teardown: a library that crashes at exit must not overwrite the answer.
    os._exit(0)


def _run(job: str, payload: Mapping[str, Any], reporter: Reporter) -> Any:
    return job_named(job)(payload, reporter)


def job_named(name: str) -> Callable[..., Any]:
    """Import and return the function that `package.module:function` names."""
    module, _, function = name.partition(":")
    named: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return named


def _forget() -> None:
    """Reset torch's state to that of a fresh process, except for imports, before the next job."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    from torchrepro.torch_api import dynamo
    from torchrepro.torch_api.names import DYNAMO

    if DYNAMO in sys.modules:
        dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def judged_in_isolation(job: str, payload: Mapping[str, Any], **how: Any) -> Verdict:
    """Run a job that returns a verdict (see `run_isolated`). If the float64 run kills it, judge without."""
    outcome = run_isolated(job, payload, **how)
    if not outcome.died_in_reference:
        return verdict_of(outcome, how["time_limit"])
    death = "did not finish" if outcome.timed_out else f"died ({outcome.death})"
    again = run_isolated(job, {**payload, "fp64": False}, **how)
    return verdict_of(again, how["time_limit"]).with_notes(f"no float64 reference: its run {death}")


def result_in_isolation(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    unfinished: str,
    next_step: str = "raise --time-limit",
    **how: Any,
) -> Any:
    """Return what a job answers (see `run_isolated`); if no answer comes, raise `unfinished` and why."""
    outcome = run_isolated(job, payload, time_limit=time_limit, **how)
    raise_reported(outcome)
    if outcome.result is None:
        reason = f"no answer after {time_limit:g} s" if outcome.timed_out else f"it died ({outcome.death})"
        raise TorchReproError(f"{unfinished}: {reason}", next_step=next_step)
    return outcome.result


def verdict_of(outcome: Outcome, time_limit: float) -> Verdict:
    """Return the verdict that a process reported, or the one derived from its death."""
    if outcome.result is not None:
        return replace(understood(outcome.result, Verdict), seconds=outcome.seconds)
    short_of_memory = _ran_out_of_memory(outcome)
    if not short_of_memory:
        raise_reported(outcome)
    doing, death, signal = _DOING.get(outcome.phase, outcome.phase), outcome.death, outcome.signal
    blaming_compiled = outcome.phase in _COMPILED_PHASES
    if outcome.timed_out and not blaming_compiled:
        raise TorchReproError(
            f"nothing could be tested: {doing} took longer than {time_limit:g} s",
            next_step="raise --time-limit",
        )
    if not blaming_compiled:
        kind, summary = Kind.INVALID, f"{doing} died ({death}), before any compiler ran"
    elif outcome.timed_out:
        kind, summary = Kind.HANG, f"no end after {time_limit:g} s ({doing})"
    elif short_of_memory:
        kind, summary = Kind.OUT_OF_MEMORY, f"{death}, most likely for memory ({doing})"
    else:
        kind, summary = Kind.CRASH, f"{death} ({doing})"
        signal = signal or f"exit {outcome.exit_code}"
    return Verdict(
        kind,
        Stage.BACKEND if blaming_compiled else Stage.NONE,
        summary=summary,
        signal=signal,
        stderr_tail=outcome.output_tail,
        seconds=outcome.seconds,
    )


def understood(answer: Any, kind: type[Answer], *, strict: bool = True) -> Answer:
    """Return the answer of a process as data of this kind, or raise.

    A stranger's code that has taken over the process can send anything (`engine/sandbox/`).
    """
    try:
        return msgspec.convert(answer, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise TorchReproError(
            f"the process sent an answer that is not of the expected form ({exc})",
            next_step="do not trust this bundle",
        ) from exc


def _ran_out_of_memory(outcome: Outcome) -> bool:
    """Return whether memory was exhausted: an error, SIGKILL or an abort that says so (`limits.py`)."""
    if outcome.error is not None:
        return outcome.error["kind"] == "memory"
    if outcome.timed_out:
        return False
    printed_so = any(words in outcome.output_tail for words in _MEMORY_MESSAGES)
    return outcome.signal == "SIGKILL" or (printed_so and outcome.signal in ("SIGABRT", ""))


def raise_reported(outcome: Outcome) -> None:
    """Raise the error that the child reported: `TorchReproError` or `HarnessError`."""
    error = outcome.error
    if error is None:
        return
    if error["kind"] == "memory":
        doing = _DOING.get(outcome.phase, outcome.phase)
        raise TorchReproError(
            f"there was not enough memory for {doing} ({error['fact']})",
            next_step="try it on a larger machine, or with smaller inputs",
        )
    if error["kind"] == "user":
        exc = TorchReproError(error["fact"], next_step=error["next_step"])
        exc.add_note(error["traceback"])
        raise exc
    raise HarnessError(f"torchrepro itself failed ({error['fact']})\n{error['traceback']}")


if __name__ == "__main__":
    main()
