"""One job in one fresh process: its result, or how and in which phase it died.

The child reports over a pipe of its own, so that whatever the user's model prints cannot be mistaken for an
answer. It leads a process group that is killed as a whole: compilers start compilers.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

_TAIL_BYTES = 8000
_GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. Exactly one of `result`, `error`, `signal`, `timed_out`, `exit_code` explains it."""

    result: Any = None
    error: Mapping[str, str] | None = None
    """`fact`, `next_step` and `traceback` of an error that is the user's to mend; `kind` tells ours apart."""
    phase: str = "start"
    signal: str = ""
    timed_out: bool = False
    exit_code: int | None = None
    seconds: float = 0.0
    output_tail: str = ""


def run_isolated(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Outcome:
    """Run the named job of `torchrepro.isolate.worker` and wait for it, at most `time_limit` seconds."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output, _child(job, payload, environ, output) as (child, reports):
        reader = _Reports(reports, on_phase)
        timed_out = not reader.follow(child, started + time_limit)
        if not timed_out:
            # The pipe may also be closed by a child that goes on: it has until the same deadline.
            timed_out = not _ends(child, started + time_limit)
        seconds = time.monotonic() - started
        exit_code = child.returncode
        return Outcome(
            result=reader.result,
            error=reader.error,
            phase=reader.phase,
            signal=signal_name(exit_code) if not timed_out else "",
            timed_out=timed_out,
            exit_code=exit_code if not timed_out else None,
            seconds=seconds,
            output_tail=_tail(output),
        )


class _Reports:
    """The lines that the child writes: phases as they begin, then one result or error."""

    def __init__(self, stream: IO[bytes], on_phase: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_phase = on_phase
        self._buffer = b""
        self.phase = "start"
        self.result: Any = None
        self.error: Mapping[str, str] | None = None

    def follow(self, child: subprocess.Popen[bytes], deadline: float) -> bool:
        """Read until the child closes its end or dies; False if the deadline comes first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if selector.select(timeout=min(left, 0.5)):
                    chunk = os.read(self._stream.fileno(), 1 << 16)
                    if not chunk:
                        return True
                    self._take(chunk)
                elif child.poll() is not None:
                    # A grandchild may hold the pipe open after the child has died.
                    return True

    def _take(self, chunk: bytes) -> None:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "phase" in message:
                self.phase = message["phase"]
                self._on_phase(self.phase)
            self.result = message.get("result", self.result)
            self.error = message.get("error", self.error)


@contextmanager
def _child(
    job: str, payload: Mapping[str, Any], environ: Mapping[str, str] | None, output: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The process, and the reading end of its reports; the whole group is gone afterwards."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", buffering=0) as reports, tempfile.TemporaryFile() as request:
        request.write(json.dumps({"job": job, "payload": payload}).encode())
        request.seek(0)
        try:
            # -P: a file called random.py in the user's directory must not replace the standard library's.
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "torchrepro.isolate.worker", str(write_end)],
                stdin=request,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            yield child, reports
        finally:
            _kill_group(child)


def _ends(child: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        child.wait(timeout=max(_GRACE_SECONDS, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(timeout=_GRACE_SECONDS)


def signal_name(exit_code: int | None) -> str:
    """The signal that an exit code, as `subprocess` has it, stands for; empty if none."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    return output.read().decode(errors="replace")
