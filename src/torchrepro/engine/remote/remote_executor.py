"""Run candidates elsewhere: the interface of `Executor`, in a search process.

A candidate leaves as the files of a bundle. Their large parts are storages of tensors, which most candidates
of a search have in common: each is sent once, and candidates refer to it by its digest. A task whose payload
names files of this machine runs here.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import select
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path

from torchrepro.bundle.manifest import encode_manifest
from torchrepro.bundle.read import MANIFEST, TENSORS
from torchrepro.bundle.storage_file import spans_of
from torchrepro.engine.processes.child import Outcome, describe_error
from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.signals import undisturbed
from torchrepro.engine.remote.messages import (
    Blob,
    Cancel,
    Candidate,
    Channel,
    Ended,
    Forget,
    Frames,
    Piece,
    send,
)
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import bundle_members

_LARGE = 256 << 10
"""A storage of at least this many bytes is sent apart."""
_KEPT = 4 << 30
"""Bytes of blobs that the other side keeps for later candidates."""
_ANY_SIZE = 1 << 62


class RemoteExecutor(AbstractContextManager["RemoteExecutor"]):
    """Runs tasks on other machines, at most `channel.workers` at a time. Has to be closed.

    `here` runs those that cannot leave this machine. `waiting` is entered while it waits, and may raise.
    """

    def __init__(
        self,
        channel: Channel,
        here: Executor,
        *,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        self.workers = channel.workers
        self._here = here
        self._waiting = waiting
        self._on_event = on_event
        self._requests = channel.requests
        self._outcomes = Frames(channel.outcomes, Ended)
        self._queue: deque[Task] = deque()
        self._running: dict[int, Task] = {}
        self._local: set[Task] = set()
        self._ended: deque[tuple[Task, Outcome]] = deque()
        self._blobs: OrderedDict[str, int] = OrderedDict()
        """Bytes of the blobs that the other side has, by digest; the last used one is last."""

    def start(self, task: Task) -> None:
        """Run a task as soon as a worker is free."""
        if task.local:
            self._local.add(task)
            self._here.start(task)
        else:
            self._queue.append(task)
            self._on_event("first task")
            self._fill()

    def wait(self) -> tuple[Task, Outcome]:
        """Return the next task that ends, and its outcome. Raise if it could not be run at all."""
        if self._local:
            ended, outcome = self._here.wait()
            self._local.discard(ended)
            return ended, outcome
        try:
            with self._waiting():
                return self._next()
        except BaseException:
            for task in (*self._queue, *self._running.values()):
                self.cancel(task)
            self._ended.clear()
            raise

    def cancel(self, task: Task) -> None:
        """Stop a task, as far as the machine on which it runs can be told. Unknown tasks are ignored."""
        self._here.cancel(task)
        self._local.discard(task)
        self._queue = deque(other for other in self._queue if other is not task)
        self._ended = deque(ended for ended in self._ended if ended[0] is not task)
        if self._running.pop(task.number, None) is not None:
            with undisturbed():
                send(self._requests, Cancel(task.number))

    def close(self) -> None:
        """Cancel all tasks."""
        for task in (*self._queue, *self._running.values()):
            self.cancel(task)
        self._here.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _next(self) -> tuple[Task, Outcome]:
        while self._queue or self._running or self._ended:
            self._fill()
            if self._ended:
                return self._ended.popleft()
            select.select([self._outcomes.descriptor], [], [])  # the only place that a signal may interrupt
            with undisturbed():
                if not self._outcomes.read():
                    raise HarnessError("the process that submits candidates is gone")
                while (message := self._outcomes.next()) is not None:
                    self._take(message)
        raise HarnessError("waiting for a task, and none is under way")

    def _take(self, message: Ended) -> None:
        task = self._running.pop(message.number, None)
        if task is None:
            return  # cancelled
        if message.outcome is None:
            raise TorchReproError(message.fact, next_step=message.next_step)
        self._ended.append((task, message.outcome))

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.workers:
            task = self._queue.popleft()
            try:
                members = dict(_members(task.repro))
            except Exception as exc:
                self._ended.append((task, Outcome(error=describe_error(exc), phase="load")))
                continue
            with undisturbed():
                self._running[task.number] = task
                self._send(task, members)

    def _send(self, task: Task, members: Mapping[str, list[bytes]]) -> None:
        used: dict[str, int] = {}
        pieces = {
            name: [self._piece(content, used) for content in contents] for name, contents in members.items()
        }
        message = Candidate(task.number, task.job, dict(task.payload), task.time_limit, pieces)
        send(self._requests, message)
        for digest, size in used.items():
            self._blobs[digest] = size
            self._blobs.move_to_end(digest)
        while sum(self._blobs.values()) > _KEPT and len(self._blobs) > len(used):
            send(self._requests, Forget(self._blobs.popitem(last=False)[0]))

    def _piece(self, content: bytes, used: dict[str, int]) -> Piece:
        if len(content) < _LARGE:
            return Piece(content)
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        if digest not in self._blobs and digest not in used:
            send(self._requests, Blob(digest, content))
        used[digest] = len(content)
        return Piece(digest=digest)


def _members(repro: Repro) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the files of a repro's bundle, each as its parts: storages of tensors are parts of their own.

    They are not written as a bundle, because that syncs each file to the disk.
    """
    members = bundle_members(repro, size_cap=_ANY_SIZE, script=False)
    yield MANIFEST, [encode_manifest(members.manifest)]
    for name, content in members.files.items():
        if isinstance(content, bytes):
            yield name, [content]
            continue
        with tempfile.TemporaryDirectory(prefix="torchrepro-candidate-") as directory:
            path = Path(directory) / name
            content(path)
            yield name, _parts(path) if name == TENSORS else [path.read_bytes()]


def _parts(tensors: Path) -> list[bytes]:
    """Return the content of a file of storages, cut where a large storage begins or ends."""
    cuts = {0, os.path.getsize(tensors)}
    for start, stop in spans_of(tensors):
        if stop - start >= _LARGE:
            cuts |= {start, stop}
    places = sorted(cuts)
    with (
        open(tensors, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        return [mapped[start:stop] for start, stop in pairwise(places)]
