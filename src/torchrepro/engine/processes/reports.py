"""Outcome: how a job in a process of its own ended; and both ends of the pipe over which the process reports.

One JSON object a line: phases as they begin, then one result or error for each job. The pipe is the child's
own, so that whatever a model prints cannot be mistaken for an answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torchrepro.nouns.errors import TorchReproError


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. Exactly one of `result`, `error`, `signal`, `timed_out`, `exit_code` explains it."""

    result: Any = None
    error: Mapping[str, str] | None = None
    """`fact`, `next_step` and `traceback` of an error; its `kind` is `user` (theirs to fix), `memory` (there
    was not enough of it) or `harness` (ours)."""
    phase: str = "start"
    signal: str = ""
    timed_out: bool = False
    exit_code: int | None = None
    seconds: float = 0.0
    output_tail: str = ""

    @property
    def died_in_reference(self) -> bool:
        """Whether the float64 run ended the process: worth running again without it."""
        return self.phase == "reference" and self.result is None and self.error is None


def run_without_reference_if_it_dies(run: Callable[..., Outcome]) -> Outcome:
    """Call `run()`; if its float64 run ended the process, return what `run(fp64=False)` gives."""
    outcome = run()
    return run(fp64=False) if outcome.died_in_reference else outcome


def signal_name(exit_code: int | None) -> str:
    """The signal that an exit code, as `subprocess` has it, stands for; empty if none."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


class Reporter:
    """The child's end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]

    def phase(self, name: str) -> None:
        self.send(phase=name)

    def answer(self, job: Callable[[], Any]) -> None:
        """Run the job and send what it returns or how it failed. It never raises."""
        try:
            message: dict[str, Any] = {"result": job()}
            # Whatever the job has returned has to be data: where it is not, that is a bug of the job.
            json.dumps(message)
        except BaseException as exc:
            # Whatever it is, the parent must hear of it: a silent exit would look like a verdict.
            message = {"error": describe_error(exc)}
        # Before the answer: the parent may end this process as soon as it has it.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the job has closed it
                stream.flush()
        self.send(**message)


class Reports:
    """The parent's end: what has been read so far."""

    def __init__(self, on_phase: Callable[[str], None] = lambda phase: None) -> None:
        self._on_phase = on_phase
        self._buffer = b""
        self.phase = "start"
        self.answered = False
        self.worn_out = False
        """The process can answer no other question: a kernel's fault has made its device unusable."""
        self.result: Any = None
        self.error: Mapping[str, str] | None = None
        self.on_message: Callable[[Mapping[str, Any]], None] = lambda message: None
        """Told of everything that comes, for jobs that send more than phases and an answer."""

    def take(self, chunk: bytes) -> None:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a child that writes into any descriptor it finds: how it ends tells the rest
            if isinstance(message, dict):
                self._take_message(message)

    def _take_message(self, message: Mapping[str, Any]) -> None:
        self.on_message(message)
        if "phase" in message:
            self.phase = message["phase"]
            self._on_phase(self.phase)
        self.worn_out = self.worn_out or "worn_out" in message
        if "result" in message or "error" in message:
            self.answered = True
            self.result = message.get("result")
            self.error = message.get("error")


def describe_error(exc: BaseException) -> dict[str, str]:
    """An error as plain text, with whose it is: see `Outcome.error`."""
    if isinstance(exc, TorchReproError):
        words = {"kind": "user", "fact": exc.fact, "next_step": exc.next_step}
    elif isinstance(exc, SystemExit):
        fact = f"the program ends itself (SystemExit: {exc.code})"
        words = {"kind": "user", "fact": fact, "next_step": "let it return instead"}
    else:
        words = {"kind": "memory" if _for_memory(exc) else "harness", "fact": repr(exc), "next_step": ""}
    return {**words, "traceback": "".join(traceback.format_exception(exc))}


def _for_memory(exc: BaseException) -> bool:
    if "torch" not in sys.modules:
        return isinstance(exc, MemoryError)
    from torchrepro.judge.execute import is_out_of_memory

    return is_out_of_memory(exc)
