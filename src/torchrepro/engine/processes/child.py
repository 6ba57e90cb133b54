"""A job under way in a process: what it reports, what it prints, and how it ended once it has."""

from __future__ import annotations

import os
import selectors
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from torchrepro.engine.processes.process_groups import Process, end_group
from torchrepro.engine.processes.reports import Outcome, Reports, signal_name

_TAIL_BYTES = 8000
_POLL_SECONDS = 0.1
_POLL_DYING_SECONDS = 0.005


class Child:
    """A process, the reading end of its reports and the file that it prints to; owns all three."""

    def __init__(
        self,
        process: Process,
        reading_end: int,
        output: IO[bytes],
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.process = process
        self.reports = Reports(on_phase)
        self.is_silent = False
        """It has closed its end of the pipe: it is dying, or it will never answer."""
        self._reading_end = reading_end
        self._output = output
        os.set_blocking(reading_end, False)

    def fileno(self) -> int:
        return self._reading_end

    def outcome(self, started: float, deadline: float) -> Outcome | None:
        """How the job ended; None while it has until the deadline."""
        exit_code = self.process.poll()  # first: what it wrote before it died is read after
        self._read()
        now = time.monotonic()
        timed_out = exit_code is None and now >= deadline
        if not self.reports.answered and exit_code is None and not timed_out:
            return None
        if self.reports.answered:
            exit_code, timed_out = 0, False  # whatever happens after the answer does not change it
        return Outcome(
            result=self.reports.result,
            error=self.reports.error,
            phase=self.reports.phase,
            signal=signal_name(exit_code),
            timed_out=timed_out,
            exit_code=exit_code,
            seconds=now - started,
            output_tail=self._tail(),
        )

    def begin_again(self, on_phase: Callable[[str], None]) -> None:
        """The process has answered and is given another job."""
        self.reports = Reports(on_phase)
        os.ftruncate(self._output.fileno(), 0)
        self._output.seek(0)  # where the process writes next

    def end(self) -> None:
        """End the process with everything that it has started."""
        try:
            end_group(self.process)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close what this process holds of it. A forked child does this for its siblings."""
        if not self._output.closed:
            os.close(self._reading_end)
            self._output.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while not self.is_silent:
                chunk = os.read(self._reading_end, 1 << 16)
                self.reports.take(chunk)
                self.is_silent = not chunk

    def _tail(self) -> str:
        # Not by seeking: the process writes where this end stands.
        descriptor = self._output.fileno()
        start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
        return os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")


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


def listen(children: Sequence[Child], deadline: float) -> None:
    """Wait until one of them has something to say, may have died, or the deadline has come.

    A pipe does not tell every death: a grandchild can hold it open. So it never waits for long.
    """
    left = max(0.0, deadline - time.monotonic())
    dying = any(child.is_silent for child in children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            if not child.is_silent:
                selector.register(child, selectors.EVENT_READ)
        selector.select(min(left, _POLL_DYING_SECONDS if dying else _POLL_SECONDS))
