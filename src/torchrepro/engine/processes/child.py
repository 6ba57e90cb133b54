"""A job in a process of its own: what it reports, what it prints, how it ends, and how it is ended.

The process reports over a pipe, one JSON object a line: phases as they begin, then a result or an error for
each job. So whatever a model prints cannot be mistaken for an answer. It leads a process group that is ended
as a whole: compilers start compilers. Signals are blocked between fork() and recording the pid
(`undisturbed`): no process is ever forgotten.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, Protocol, Self

from torchrepro.nouns.errors import HarnessError, TorchReproError

OnMessage = Callable[[Mapping[str, Any]], None]
"""Told of everything that a process reports."""
SignalHandler = Callable[[int, FrameType | None], None]

_TAIL_BYTES = 8000
_POLL_SECONDS = 0.1
_POLL_DYING_SECONDS = 0.005
_TERM_SECONDS = 0.3
_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


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

    @property
    def death(self) -> str:
        """What ended it, in words."""
        if self.error is not None:
            return self.error["fact"]
        return self.signal or f"exit code {self.exit_code}"


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
    """The child's end of the pipe. Jobs are given it, and call it with the name of each phase."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **message: Any) -> None:
        write_line(self._descriptor, message)

    def phase(self, name: str) -> None:
        self.send(phase=name)

    __call__ = phase

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


def write_line(descriptor: int, data: Any) -> None:
    """Write plain data as one line of JSON."""
    line = json.dumps(data).encode() + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]


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


class Process(Protocol):
    """A child of this process, which leads (or is about to lead) a group of its own."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Reaps it."""


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
    """A process that leads a group, and the file that it prints to; ended as a context manager too."""

    def __init__(self, process: Process, output: IO[bytes]) -> None:
        self.process = process
        self.started = time.monotonic()
        self._output = output

    @classmethod
    def start(
        cls, command: Sequence[str], *, cwd: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program without input, in a session of its own."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 (the program owns it)
        return cls(popen(command, output, cwd=cwd, env={**os.environ, **(environ or {})}), output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def tail(self, size: int = _TAIL_BYTES) -> str:
        """The end of what it has printed."""
        # Not by seeking: the process writes where this end stands.
        descriptor = self._output.fileno()
        start = max(0, os.fstat(descriptor).st_size - size)
        return os.pread(descriptor, size, start).decode(errors="replace")

    def end(self) -> None:
        """End the process with everything that it has started."""
        try:
            end_group(self.process)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close what this process holds of it. A forked child does this for its siblings."""
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
        """It has closed its end of the pipe: it is dying, or it will never answer."""
        self.is_worn_out = False
        """It can answer no other question: a kernel's fault has made its device unusable."""
        self.jobs = 0
        """How many it has been given."""
        self._reports, self._requests = reports, requests
        self._unread = b""
        os.set_blocking(reports, False)

    def fileno(self) -> int:
        return self._reports

    def begin(
        self, time_limit: float, *, phase: str = "start", on_message: OnMessage = lambda message: None
    ) -> None:
        """Expect an answer within so many seconds from now."""
        self.jobs += 1
        if self.jobs > 1:
            os.ftruncate(self._output.fileno(), 0)
            self._output.seek(0)  # where the process writes next
        self.phase, self.answered = phase, False
        self._answer: Mapping[str, Any] = {}
        self._on_message = on_message
        self._set_clock(time_limit)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Hand over a request; in vain to one that has just died, which its exit code tells."""
        assert self._requests is not None
        with suppress(BrokenPipeError):
            write_line(self._requests, request)

    def outcome(self) -> Outcome | None:
        """How the job ended; None while it has until the deadline."""
        exit_code = self.process.poll()  # first: what it wrote before it died is read after
        self._read()
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
            while not self.is_silent:
                chunk = os.read(self._reports, 1 << 16)
                *lines, self._unread = (self._unread + chunk).split(b"\n")
                for line in lines:
                    self._take(line)
                self.is_silent = not chunk

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # a child that writes into any descriptor it finds: how it ends tells the rest
        if not isinstance(message, dict):
            return
        self._on_message(message)
        self.phase = message.get("phase", self.phase)
        if "time_limit" in message:
            self._set_clock(message["time_limit"])
        self.is_worn_out = self.is_worn_out or "worn_out" in message
        if "result" in message or "error" in message:
            self.answered, self._answer = True, message


@contextmanager
def reports_and_output() -> Iterator[tuple[int, int, IO[bytes]]]:
    """What to start a process with: both ends of a pipe and a file without a name. Make a `Child` of them.

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
    """Wait until one of them has something to say, may have died, or a deadline has come.

    A pipe does not tell every death: a grandchild can hold it open. So it never waits for long.
    """
    left = min((child.deadline for child in children), default=0.0) - time.monotonic()
    dying = any(child.is_silent for child in children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            if not child.is_silent:
                selector.register(child, selectors.EVENT_READ)
        selector.select(max(0.0, min(left, _POLL_DYING_SECONDS if dying else _POLL_SECONDS)))


def end_group(leader: Process) -> None:
    """End a process with everything that it has started, and reap it.

    First politely: on SIGTERM g++ removes the kernel or precompiled header that it has half written (in 12 of
    12 tries). After SIGKILL it stays in the cache (12 of 12), and the next candidate that needs it loads it.
    """
    _send(leader, signal.SIGTERM)
    if not _wait(leader, _TERM_SECONDS, whole_group=True):
        _send(leader, signal.SIGKILL)
        # Dead orphans that are not reaped (a container without an init) count as members.
        if not _wait(leader, _GRACE_SECONDS, whole_group=False):
            raise HarnessError(f"the process {leader.pid} cannot be killed")


def _send(leader: Process, number: int) -> bool:
    """Send a signal to a group; whether it has members. 0: only ask."""
    reached = False
    # PermissionError: on macOS for a group of which only a dead process is left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
        reached = True
    # A child that has just been forked may not lead its group yet. Not reaped: its number is still its own.
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


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies, however that happens (Linux)."""
    if sys.platform == "linux" and _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)  # it died before the request


@contextmanager
def handling(handlers: Mapping[int, SignalHandler]) -> Iterator[None]:
    """Handle signals in the body. What a shell ignores for a process in the background stays ignored.

    Python handles signals in the main thread only; a caller in another thread keeps its own handlers.
    """
    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM: what was started is ended on the way out, which a second one does not disturb."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM until the end of the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_afresh() -> None:
    """Reset the signal mask and handlers that a new process has inherited; let it leave no core dump."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, signal.Handlers):
            signal.signal(number, signal.SIG_DFL)
    # A shell ignores it for what it starts in the background; a candidate that dies of it has to show it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A crash of a process with gigabytes would take seconds to be written down.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
