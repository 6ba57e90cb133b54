"""A job in its own process: what it reports, what it prints, how it ends, and how it is killed.

The process reports over a pipe, one JSON object a line: phases as they begin, then a result or an error for
each job. So whatever a model prints cannot be mistaken for an answer. It leads a process group, which is
killed as a whole because compilers start processes too. Signals are blocked between fork() and recording the
pid (`undisturbed`), so no process is left running.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol, Self

import msgspec

from torchrepro.nouns.errors import HarnessError, TorchReproError, refused_by_system

OnMessage = Callable[[Mapping[str, Any]], None]
"""Called with every message that a process reports."""

_TAIL_BYTES = 8000
_LONGEST_LINE = 256 << 20
"""Bytes of a report; a process that sends more does not answer."""
_CHUNK, _MOST_CHUNKS = 1 << 16, 256
_POLL_SECONDS = 0.1
_POLL_DYING_SECONDS = 0.005
_TERM_SECONDS = 0.3
_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. Exactly one of `result`, `error`, `signal`, `timed_out`, `exit_code` explains it."""

    result: Any = None
    error: Mapping[str, str] | None = None
    """`fact`, `next_step` and `traceback` of an error; its `kind` is `user` (for the user to fix), `memory`
    (there was not enough) or `harness` (a bug of torchrepro)."""
    phase: str = "start"
    signal: str = ""
    timed_out: bool = False
    exit_code: int | None = None
    seconds: float = 0.0
    output_tail: str = ""

    @property
    def died_in_reference(self) -> bool:
        """Whether the float64 run killed the process: then it is run again without that."""
        return self.phase == "reference" and self.result is None and self.error is None

    @property
    def death(self) -> str:
        """What ended it, in words."""
        if self.error is not None:
            return self.error["fact"]
        return self.signal or f"exit code {self.exit_code}"


def run_without_reference_if_it_dies(run: Callable[..., Outcome]) -> Outcome:
    """Return `run()`, or `run(fp64=False)` if the float64 run killed the process."""
    outcome = run()
    return run(fp64=False) if outcome.died_in_reference else outcome


def signal_name(exit_code: int | None) -> str:
    """Return the name of the signal behind an exit code of `subprocess`; empty if there is none."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


class Progress(msgspec.Struct, frozen=True):
    """What a search reports while it runs."""

    name: str = msgspec.field(name="pass", default="")
    start: tuple[int, int, int] | None = None
    best: tuple[int, int, int] | None = None
    queries: int = 0
    known: int = 0


class Failed(msgspec.Struct, frozen=True):
    """An error that a process reports: see `Outcome.error`."""

    kind: str
    fact: str
    next_step: str
    traceback: str


class Message(msgspec.Struct, frozen=True):
    """What a process may report. Code of a stranger that writes into its pipe can send no more."""

    phase: str = ""
    step: str = ""
    passes: dict[str, str] = {}
    progress: Progress | None = None
    script: str = ""
    """The path of a script that was seen to fail, before the search is over."""
    code: str = ""
    """What the compiler generated for a graph (`execute/generate_code.py`)."""
    time_limit: float = 0.0
    worn_out: bool = False
    result: Any = None
    error: Failed | None = None
    sandbox: str = ""
    """Which sandbox the process is in (`engine/sandbox/supervise.py`)."""
    ended: int = 0
    """The exit code of the process in the sandbox, negative for a signal."""


class Reporter:
    """The child's end of the pipe. A job calls it with the name of each phase."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **message: Any) -> None:
        write_line(self._descriptor, message)

    def phase(self, name: str) -> None:
        self.send(phase=name)

    __call__ = phase

    def answer(self, job: Callable[[], Any]) -> None:
        """Run the job and send its result or its error. Never raises."""
        try:
            message: dict[str, Any] = {"result": job()}
            # The result has to be plain data; anything else is a bug of the job.
            json.dumps(message)
        except BaseException as exc:
            # Report every error to the parent: a silent exit would look like a verdict.
            message = {"error": describe_error(exc)}
        # Before the answer: the parent may kill this process as soon as it has it.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the job has closed it
                stream.flush()
        self.send(**message)


def write_line(descriptor: int, data: Any) -> None:
    """Write plain data as one line of JSON."""
    line = json.dumps(data).encode() + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]


def describe_error(exc: BaseException) -> dict[str, str]:
    """Return an error as plain text, with its kind: see `Outcome.error`."""
    if isinstance(exc, TorchReproError):
        words = {"kind": "user", "fact": exc.fact, "next_step": exc.next_step}
    elif (refused := refused_by_system(exc)) is not None:
        words = {"kind": "user", "fact": refused.fact, "next_step": refused.next_step}
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


class Process(Protocol):
    """A child of this process, which leads (or is about to lead) a group of its own."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, and reap the process; None while it runs."""


class ForkedProcess:
    """A child made by `os.fork`: what `subprocess.Popen` is for a program."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code


class Program:
    """A process that leads a group, and the file that it prints to; leaving the context kills it."""

    def __init__(self, process: Process, output: IO[bytes]) -> None:
        self.process = process
        self.started = time.monotonic()
        self._output = output

    @classmethod
    def start(cls, command: Sequence[str], env: Mapping[str, str] | None = None) -> Program:
        """Start a program without input, in a session of its own."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 (the program owns it)
        return cls(popen(command, output, env=env), output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def tail(self, size: int = _TAIL_BYTES) -> str:
        """Return the end of what the process has printed."""
        # Not by seeking: the process shares the file offset.
        descriptor = self._output.fileno()
        start = max(0, os.fstat(descriptor).st_size - size)
        return os.pread(descriptor, size, start).decode(errors="replace")

    def end(self) -> None:
        """Kill the process with everything that it has started."""
        try:
            end_group(self.process)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the descriptors of this process for it. A forked child does this for its siblings."""
        self._output.close()


def popen(command: Sequence[str], output: IO[bytes], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program as the leader of a group; what it prints goes to a file."""
    options = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options
    )


class Child(Program):
    """A process that reports. Owns the reading end of its reports, and the writing end of its requests."""

    def __init__(
        self, process: Process, output: IO[bytes], reports: int, requests: int | None = None
    ) -> None:
        super().__init__(process, output)
        self.is_silent = False
        """It has closed its end of the pipe: it is exiting, or it will never answer."""
        self.is_worn_out = False
        """It cannot run another job: a kernel's fault has made its device unusable."""
        self.jobs = 0
        """How many jobs it has been given."""
        self._reports, self._requests = reports, requests
        self._unread = bytearray()
        self._ended: int | None = None
        """The exit code of a process in a sandbox, which the process around it reports."""
        os.set_blocking(reports, False)

    @property
    def serves(self) -> bool:
        """Whether it takes one job after the other, and is not a fork for a single one."""
        return self._requests is not None

    def fileno(self) -> int:
        return self._reports

    def begin(
        self,
        time_limit: float,
        *,
        phase: str = "start",
        on_message: OnMessage = lambda message: None,
        may_set_clock: bool = False,
    ) -> None:
        """Expect an answer within this many seconds from now; the process `may_set_clock` again, once."""
        self.jobs += 1
        if self.jobs > 1:
            os.ftruncate(self._output.fileno(), 0)
            self._output.seek(0)  # where the process writes next
        self.phase, self.answered = phase, False
        self._answer: Mapping[str, Any] = {}
        self._on_message = on_message
        self._may_set_clock = may_set_clock
        self._set_clock(time_limit)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request. A process that has just died does not read it; its exit code shows that."""
        assert self._requests is not None
        with suppress(BrokenPipeError):
            write_line(self._requests, request)

    def outcome(self) -> Outcome | None:
        """Return how the job ended; None before the deadline while it still runs."""
        exit_code = self.process.poll()  # first: what it wrote before it died is read after
        self._read()
        exit_code = exit_code if self._ended is None else self._ended
        timed_out = exit_code is None and time.monotonic() >= self.deadline
        if not self.answered and exit_code is None and not timed_out:
            return None
        if self.answered:
            exit_code, timed_out = 0, False  # whatever happens after the answer does not change it
        return Outcome(
            result=self._answer.get("result"),
            error=self._answer.get("error"),
            phase=self.phase,
            signal=signal_name(exit_code),
            timed_out=timed_out,
            exit_code=exit_code,
            seconds=self.seconds,
            output_tail=self.tail(),
        )

    def wait(self) -> Outcome:
        """Wait for the job to end, and return how it did."""
        while (outcome := self.outcome()) is None:
            listen([self])
        return outcome

    def let_go(self) -> None:
        if not self._output.closed:
            for descriptor in (self._reports, self._requests):
                if descriptor is not None:
                    os.close(descriptor)
            super().let_go()

    def _set_clock(self, time_limit: float) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + time_limit

    def _read(self) -> None:
        with suppress(BlockingIOError):
            # So many at a time: a process that never stops reporting must not keep its deadline from passing.
            for _ in range(_MOST_CHUNKS):
                if self.is_silent:
                    break
                chunk = os.read(self._reports, _CHUNK)
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    self._take(bytes(self._unread) + line)
                    self._unread.clear()
                self._unread += rest
                self.is_silent = not chunk or len(self._unread) > _LONGEST_LINE

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            told = msgspec.convert(message, Message)
        except (ValueError, RecursionError):
            return  # the child wrote into all of its descriptors: its exit code is evaluated instead
        self._on_message(message)
        self.phase = told.phase or self.phase
        if "time_limit" in message and self._may_set_clock:
            self._may_set_clock = False
            self._set_clock(told.time_limit)
        self.is_worn_out = self.is_worn_out or told.worn_out
        if "ended" in message:
            self._ended = told.ended
        if "result" in message or "error" in message:
            self.answered, self._answer = True, message


@contextmanager
def reports_and_output() -> Iterator[tuple[int, int, IO[bytes]]]:
    """Yield both ends of a pipe and an unnamed file to start a process with and to make a `Child` of.

    Afterwards only the process has the writing end; if it could not be started, all are closed.
    """
    reading_end, writing_end = os.pipe()
    output = tempfile.TemporaryFile()  # noqa: SIM115 (the child owns it)
    try:
        yield reading_end, writing_end, output
    except BaseException:
        os.close(reading_end)
        output.close()
        raise
    finally:
        os.close(writing_end)


def listen(children: Sequence[Child]) -> None:
    """Wait until one of them has reported, may have died, or has reached its deadline.

    The pipe does not reveal every exit, because a grandchild can hold it open. So each wait is short.
    """
    left = min((child.deadline for child in children), default=0.0) - time.monotonic()
    dying = any(child.is_silent for child in children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            if not child.is_silent:
                selector.register(child, selectors.EVENT_READ)
        selector.select(max(0.0, min(left, _POLL_DYING_SECONDS if dying else _POLL_SECONDS)))


def end_group(leader: Process) -> None:
    """Kill a process with everything that it has started, and reap it.

    SIGTERM first: g++ then removes the kernel or precompiled header that it has half written (in 12 of
    12 tries). After SIGKILL it stays in the cache (12 of 12), and the next candidate that needs it loads it.
    """
    _send(leader, signal.SIGTERM)
    if not _wait(leader, _TERM_SECONDS, whole_group=True):
        _send(leader, signal.SIGKILL)
        # Dead orphans that are not reaped (a container without an init) count as members.
        if not _wait(leader, _GRACE_SECONDS, whole_group=False):
            raise HarnessError(f"the process {leader.pid} cannot be killed")


def _send(leader: Process, number: int) -> bool:
    """Send a signal to a group (0: none) and return whether the group has members."""
    reached = False
    # PermissionError: on macOS for a group of which only a dead process is left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
        reached = True
    # A child that has just been forked may not lead its group yet. It is not reaped: its pid is not reused.
    if leader.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(leader.pid, number)
    return reached


def _wait(leader: Process, seconds: float, *, whole_group: bool) -> bool:
    deadline = time.monotonic() + seconds
    while leader.poll() is None or (whole_group and _send(leader, 0)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
