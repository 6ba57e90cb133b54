"""Submit the candidates of a search process to an executor of the process that started it. Needs no torch.

The executor is the caller's, in the caller's process: it may have threads, sockets and credentials, which the
search process must not have (it forks, and it may be confined). Two threads move messages between the pipes
of the search process and the executor; neither waits for the other, so no full pipe can block both sides.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from torchrepro.engine.processes.limits import usable_cores
from torchrepro.engine.remote.messages import (
    Blob,
    Cancel,
    Candidate,
    Channel,
    Ended,
    Forget,
    Frames,
    Request,
    Site,
    send,
)
from torchrepro.engine.remote.worker import run_candidate
from torchrepro.nouns.errors import HarnessError, TorchReproError, in_a_line

_JOIN_SECONDS = 5.0


def workers_of(executor: concurrent.futures.Executor) -> int:
    """Return how many calls an executor runs at the same time; one for each core here if it does not tell."""
    # The interface has no such attribute; the pools of the standard library and most others have this one.
    told = getattr(executor, "_max_workers", None)
    return told if isinstance(told, int) and told > 0 else usable_cores()


@contextmanager
def relay(executor: concurrent.futures.Executor, site: Site, jobs: int | None) -> Iterator[Channel]:
    """Submit what comes through pipes, `jobs` at a time; yield the ends that the search process gets.

    Afterwards every candidate that still runs is cancelled, as far as the executor can do that.
    """
    requests, search_requests = os.pipe()
    search_outcomes, outcomes = os.pipe()
    lending = _Relay(executor, site, requests, outcomes)
    try:
        yield Channel(search_requests, search_outcomes, jobs or workers_of(executor))
    finally:
        for descriptor in (search_requests, search_outcomes):
            os.close(descriptor)
        lending.close()


class _Relay:
    def __init__(
        self, executor: concurrent.futures.Executor, site: Site, requests: int, outcomes: int
    ) -> None:
        self._executor, self._site = executor, site
        self._outcomes = outcomes
        self._frames = Frames(requests, Request)
        self._closing = os.pipe()
        self._blobs: dict[str, Blob] = {}
        self._futures: dict[int, concurrent.futures.Future[Ended]] = {}
        self._outbox: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._take_requests, name="torchrepro-requests", daemon=True),
            threading.Thread(target=self._send_outcomes, name="torchrepro-outcomes", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        os.write(self._closing[1], b".")
        self._threads[0].join(_JOIN_SECONDS)
        for future in list(self._futures.values()):
            future.cancel()
        self._outbox.put(None)
        self._threads[1].join(_JOIN_SECONDS)
        for descriptor in self._closing:
            os.close(descriptor)

    def _is_readable(self) -> bool:
        """Wait for a request; return False once this is closed."""
        # Processes of a pool may have inherited the other end, so the end of the pipe may never come.
        readable, _, _ = select.select([self._frames.descriptor, self._closing[0]], [], [])
        return self._closing[0] not in readable

    def _take_requests(self) -> None:
        try:
            while self._is_readable() and self._frames.read():
                while (message := self._frames.next()) is not None:
                    self._take(message)
        except (msgspec.MsgspecError, HarnessError):
            self._outbox.put(None)  # code of a stranger writes into the pipe: the search gets no more answers
        finally:
            os.close(self._frames.descriptor)

    def _take(self, message: Request) -> None:
        match message:
            case Blob():
                self._blobs[message.digest] = message
            case Forget():
                self._blobs.pop(message.digest, None)
            case Cancel():
                future = self._futures.pop(message.number, None)
                if future is not None:
                    future.cancel()
            case Candidate():
                self._submit(message)

    def _submit(self, candidate: Candidate) -> None:
        try:
            blobs = [self._blobs[digest] for digest in candidate.digests]
            future = self._executor.submit(run_candidate, self._site, candidate, *blobs)
        except Exception as exc:
            self._outbox.put(_not_run(candidate.number, exc))
            return
        self._futures[candidate.number] = future
        future.add_done_callback(partial(self._ended, candidate.number))

    def _ended(self, number: int, future: concurrent.futures.Future[Ended]) -> None:
        if self._futures.pop(number, None) is None or future.cancelled():
            return
        exc = future.exception()
        self._outbox.put(future.result() if exc is None else _not_run(number, exc))

    def _send_outcomes(self) -> None:
        with suppress(BrokenPipeError):  # the search process has ended
            while (message := self._outbox.get()) is not None:
                send(self._outcomes, message)
        os.close(self._outcomes)


def _not_run(number: int, exc: BaseException) -> Ended:
    """Return that a candidate could not be run: no verdict, so the search has to stop."""
    if isinstance(exc, TorchReproError):
        return Ended(number, fact=exc.fact, next_step=exc.next_step)
    return Ended(
        number,
        fact=f"the executor could not run a candidate ({type(exc).__name__}: {in_a_line(exc)})",
        next_step="the same command continues from here, once the executor works",
    )
