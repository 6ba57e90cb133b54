"""Run a candidate on the machine on which an executor calls `run_candidate`. Needs no torch.

The calling process only waits. A host, which is a process of ours, keeps torch and the compiler warm and
forks a child for each candidate (`host.py`); a candidate that crashes, hangs or lacks memory ends its child.
Each thread that calls has a host of its own, so an executor may use threads or processes. A host lives as
long as its thread. It is replaced if it dies, and a candidate that was lost with it runs once more.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType

from torchrepro.bundle.provenance import Standing
from torchrepro.bundle.read import check_member_name, read_manifest
from torchrepro.engine.processes.child import Child, Outcome, listen
from torchrepro.engine.processes.fresh_process import start_interpreter, understood
from torchrepro.engine.processes.limits import MARK, end_leftovers, owned_directory
from torchrepro.engine.processes.signals import handling
from torchrepro.engine.remote.messages import Blob, Candidate, Ended, Site, require_versions
from torchrepro.engine.sandbox.chosen import Sandbox, sandbox_for
from torchrepro.engine.search.run_directory import seed_here
from torchrepro.nouns.errors import TorchReproError, in_a_line

_JOB = "torchrepro.engine.remote.host:run_task"
_START_SECONDS = 600.0
"""Until the job begins: a host imports torch and compiles something of its own first."""
_MARGIN_SECONDS = 60.0
"""A host that is so much later than the time limit of its candidate does not answer any more."""
_CANCEL_SECONDS = 5.0
_TRIES = 2

_own = threading.local()


def run_candidate(site: Site, candidate: Candidate, *blobs: Blob) -> Ended:
    """Run a candidate in a child of this thread's host; return how it ended, or why it could not be run.

    `blobs` are the parts of its files that it refers to. An interrupt cancels it; the host survives that.
    """
    try:
        require_versions(site.versions)
        outcome = _run(site, candidate, {blob.digest: blob.content for blob in blobs})
    except TorchReproError as exc:
        return Ended(candidate.number, fact=f"on {platform.node()}: {exc.fact}", next_step=exc.next_step)
    except OSError as exc:
        fact = f"on {platform.node()}: {in_a_line(exc)}"
        return Ended(candidate.number, fact=fact, next_step="look at the disk and memory of that machine")
    return Ended(candidate.number, outcome)


def _run(site: Site, candidate: Candidate, blobs: Mapping[str, bytes]) -> Outcome:
    interrupt = _Interrupt()
    warm = True
    # An interrupt must not come between the start of a process and the record of it.
    with handling({signal.SIGINT: interrupt.take}):
        for _ in range(_TRIES):
            host = _host_for(site)
            outcome = host.run(candidate, blobs, interrupt, warm=warm)
            if outcome is not None:
                return outcome
            end_host()
            warm = host.last_phase != "warm"  # the compiler under test may crash when it is warmed up
    raise TorchReproError(
        f"the process for candidates died twice ({host.death})",
        next_step="look at the memory of that machine; the same command continues from here",
    )


class _Interrupt:
    """Whether this call has been cancelled: Ray interrupts the main thread of its worker."""

    def __init__(self) -> None:
        self.came = False

    def take(self, number: int, frame: FrameType | None) -> None:
        self.came = True


def _host_for(site: Site) -> Host:
    """Return the host of this thread; another one if it has worked for another run."""
    host: Host | None = getattr(_own, "host", None)
    if host is not None and host.site == site and host.is_alive:
        return host
    end_host()
    _own.host = host = Host(site)
    return host


def end_host() -> None:
    """End the host of this thread, if there is one."""
    host: Host | None = getattr(_own, "host", None)
    if host is not None:
        _own.host = None
        host.close()


class Host:
    """A process that runs candidates of one run, one at a time, and its directory.

    The process may write to `scratch` alone if it is confined, and never to the bundles in `inbox`: a link
    there could lead this process, which is not confined, to somewhere else.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.last_phase = self.death = ""
        self._stack = ExitStack()
        self._directory = self._stack.enter_context(owned_directory("torchrepro-host-"))
        self.close = Finalize(self, self._stack.close, exitpriority=1)
        """Ends the process with everything that it has started, and removes its files. Called at the end of
        the thread, and at the exit of the process too; in processes of a pool `atexit` would not be."""
        self._inbox, self._scratch = self._directory / "inbox", self._directory / "scratch"
        self._inbox.mkdir()
        self._scratch.mkdir()
        self._process: Child | None = None
        self._sandbox: Sandbox | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is None or self._process.process.poll() is None

    def run(
        self, candidate: Candidate, blobs: Mapping[str, bytes], interrupt: _Interrupt, *, warm: bool
    ) -> Outcome | None:
        """Return the outcome of a candidate; None if the host has died, and `death` says how."""
        bundle = self._inbox / str(candidate.number)
        try:
            _write(bundle, candidate, blobs)
            process = self._process or self._start(bundle)
            process.begin(_START_SECONDS, phase="spawn", may_set_clock=True)
            process.ask({"job": _JOB, "payload": self._payload(candidate, bundle, process, warm)})
            while (ended := process.outcome()) is None:
                if interrupt.came:
                    self._cancel(process)
                    raise KeyboardInterrupt
                listen([process])
        finally:
            shutil.rmtree(bundle, ignore_errors=True)
        self.last_phase = ended.phase
        self.death = "it did not answer" if ended.timed_out else ended.death
        if ended.error is not None:
            end_host()
            raise TorchReproError(ended.error["fact"], next_step=ended.error["next_step"])
        return None if ended.result is None else understood(ended.result, Outcome)

    def _start(self, bundle: Path) -> Child:
        environ = {
            **self.site.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(self._scratch / "cache"),
            MARK: self._directory.name,
        }
        if self.site.confined:
            self._sandbox = self._stack.enter_context(
                sandbox_for(
                    self._inbox,
                    read_manifest(bundle),
                    Standing(own=False, trusted=()),
                    seed=seed_here(),
                    scratch=self._scratch,
                )
            )
        self._process = start_interpreter(environ, sandbox=self._sandbox)
        self._stack.callback(end_leftovers, self._directory.name)
        self._stack.callback(self._process.end)
        return self._process

    def _payload(self, candidate: Candidate, bundle: Path, process: Child, warm: bool) -> dict[str, object]:
        return {
            "job": candidate.job,
            "payload": candidate.payload,
            "bundle": str(bundle),
            "time_limit": candidate.time_limit,
            "margin": _MARGIN_SECONDS,
            "parent": 0 if self._sandbox is not None else os.getpid(),
            "path": [os.path.abspath(path) for path in sys.path],
            "scratch": str(self._scratch),
            "seed": str(seed_here()) if process.jobs == 1 and warm else "",
        }

    def _cancel(self, process: Child) -> None:
        """Let the host end the candidate, so that it stays warm; end it if it does not do so."""
        pid = process.process.pid
        with suppress(ProcessLookupError):
            os.kill(pid if self._sandbox is None else self._sandbox.signalled(pid), signal.SIGINT)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while process.outcome() is None:
            if time.monotonic() > deadline:
                break
            listen([process])
        if not process.answered:
            end_host()


def _write(bundle: Path, candidate: Candidate, blobs: Mapping[str, bytes]) -> None:
    bundle.mkdir()
    for name, pieces in candidate.members.items():
        check_member_name(name)
        path = bundle / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            for piece in pieces:
                file.write(blobs[piece.digest] if piece.digest else piece.content)
