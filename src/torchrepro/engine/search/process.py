"""Start a search process, follow it, pass Ctrl-C on to it, and leave nothing behind. Needs no torch.

The search process leads its own session, so a Ctrl-C of the terminal reaches only the parent: the first
requests the search to stop with its best so far, the second kills everything. The search process never
outlives its parent, and the processes that it starts outlive neither.

It first requests a signal for the parent's death, then imports torch, which takes seconds.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.manifest import devices_of
from torchrepro.bundle.provenance import standing_of
from torchrepro.bundle.read import read_manifest, require_complete
from torchrepro.engine.processes.child import Child, OnMessage, Outcome, Reporter
from torchrepro.engine.processes.fork_safety import hide_devices, query_devices_without_driver
from torchrepro.engine.processes.fresh_process import (
    compiler_environment,
    job_named,
    raise_reported,
    run_isolated,
    understood,
)
from torchrepro.engine.processes.limits import MARK, end_leftovers
from torchrepro.engine.processes.signals import die_with, handling, leave
from torchrepro.engine.remote.messages import Channel, Site, versions_here
from torchrepro.engine.remote.relay import relay
from torchrepro.engine.sandbox.chosen import Sandbox, remove, sandbox_for
from torchrepro.engine.search.confined import answer_outside, copy_known, copy_out, working_copy
from torchrepro.engine.search.run_directory import (
    Identity,
    RunDirectory,
    held,
    minified_beside,
    seed_of,
    write_json,
)
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import telling_environment
from torchrepro.nouns.results import Located, Minified


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The job of a search, its bundle, and where its result goes."""

    job: str
    """`package.module:function` that takes this and a `Reporter`, and returns plain data."""
    bundle: str
    directory: str
    """The directory of the run (`engine/search/run_directory.py`)."""
    settings: Mapping[str, Any]
    """As plain data; only the job interprets them."""
    seed: str
    """The directory of the warm cache that the next run starts from (`engine/search/setup.py`)."""
    parent: int
    """The pid of the parent, which the search does not outlive; 0: a sandbox ends it."""
    mark: str = ""
    """The mark of the run's processes (`engine/processes/limits.py`); empty: that of the directory."""
    known: str = ""
    """The run directory of `minify` on the same bundle, whose verdicts are used here too; empty: none."""
    recorded: bool = False
    """The record of the failure is the user's own, so it counts as a run of the original."""
    asked: float = 0.0
    """When the search was asked for, by the clock that all processes share (`time.monotonic`)."""
    rehearse: bool = False
    """Whether forked children can compile is uncertain: if the first does not answer, it is tried."""
    warm: bool = True
    """Warm up before the first candidate; False after a search process died while warming up."""
    stays: bool = False
    """This process runs the next search too, with workers that read kernels from the cache of this run."""
    lock: int = -1
    """The descriptor that holds the lock of the run directory; candidates must not inherit it. -1: none."""
    channel: Channel | None = None
    """Where candidates are sent, if they run on other machines (`engine/remote/`)."""


def run_search(
    request: SearchRequest,
    *,
    environ: Mapping[str, str],
    on_message: OnMessage,
    sandbox: Sandbox | None = None,
    start: Start | None = None,
    python: str = "",
) -> Outcome:
    """Run a search and return its outcome; raise KeyboardInterrupt if it was stopped without a result.

    It runs in a process of the interpreter `python`, by default this one.
    """
    directory = RunDirectory(Path(request.directory))
    mark, channel = request.mark or directory.mark, request.channel
    interrupts = _Interrupts(on_message)
    with handling({signal.SIGINT: interrupts.take, signal.SIGTERM: leave}):
        try:
            outcome = run_isolated(
                "torchrepro.engine.search.process:search",
                msgspec.to_builtins(request),
                time_limit=math.inf,
                environ={**environ, MARK: mark},
                on_message=on_message,
                on_start=interrupts.pass_on_to,
                pass_fds=(request.lock,) if request.lock >= 0 else (),
                inner_fds=(channel.requests, channel.outcomes) if channel is not None else (),
                sandbox=sandbox,
                start=start,
                python=python,
            )
        finally:
            end_leftovers(mark)
            shutil.rmtree(directory.scratch, ignore_errors=True)
        if outcome.result is None and interrupts.count:
            raise KeyboardInterrupt  # stopped before there was a result
        return outcome


def search(payload: Mapping[str, Any], reporter: Reporter) -> Any:
    """Run a search in this process, which is its own."""
    request = msgspec.convert(payload, SearchRequest)
    tempfile.tempdir = None  # an earlier search of this process has removed its own
    if request.parent:
        die_with(request.parent, signal.SIGTERM)
    if request.parent and request.lock >= 0:
        # Candidates must not hold the lock of the run: it is released when this process exits.
        os.set_inheritable(request.lock, False)
        os.register_at_fork(after_in_child=lambda: os.close(request.lock))
    return job_named(request.job)(request, reporter)  # imports torch


class _Interrupts:
    """Passes the first Ctrl-C to the search, and raises at the second. SIGTERM is not passed on."""

    def __init__(self, on_message: OnMessage) -> None:
        self.count = 0
        self._on_message = on_message
        self._search: int | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        self._on_message({"stopping": True})
        self._ask_to_stop()

    def pass_on_to(self, search: int) -> None:
        self._search = search
        if self.count:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        if self._search is not None:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(self._search, signal.SIGINT)


Answer = TypeVar("Answer", bound=Located | Minified)
Start = Callable[[Mapping[str, str]], AbstractContextManager[Child]]
"""Makes the search process from its environment; leaving the context ends it, or keeps it for the next."""
BY_USER, TIME_IS_UP = "stopped by the user", "the time is up"
"""Why a search stopped early."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of a search process: it forks, so it must have no other thread."""


@dataclass(frozen=True)
class Search(Generic[Answer]):
    """A search process on a bundle, in its own run directory."""

    job: str
    kind: type[Answer]
    bundle: Path
    directory: RunDirectory
    settings: Any
    finished: Callable[[], Answer | None]
    """Returns the answer of an earlier search in the directory, if it finished."""
    elsewhere: str = ""
    """A note on the directory, if it is not the usual one."""
    fresh: bool = False
    """Start over, even if an earlier run has left results."""
    oracle: str = ""
    """The command that judges candidates; empty: the built-in judge."""
    kept: Callable[[], str] = lambda: ""
    """Returns a note on what a search left whose process died."""
    start: Start | None = None
    """Makes the search process, if it is not a fresh one (`engine/processes/fork_safety.py`)."""
    started_before: bool = False
    """`start` returns a process that was started before this search, so it does not inherit the lock."""
    executor: concurrent.futures.Executor | None = None
    """Runs the candidates, on other machines for example; None: the search process runs them."""

    def answer(self, on_message: OnMessage = lambda message: None) -> Answer:
        """Return the answer of a finished search about the same bundle, else run the search."""
        asked = time.monotonic()
        identity = Identity.of(self.bundle, oracle=self.oracle)
        with held(self.directory) as lock:
            started_over = self.directory.begin(identity, fresh=self.fresh)
            former = self.finished()
            if former is not None:
                return former
            told = self._run(identity, lock, asked, on_message)
        found = understood(told, self.kind, strict=False)
        return replace(found, notes=(*filter(None, (self.elsewhere, started_over)), *found.notes))

    def _run(self, identity: Identity, lock: int, asked: float, on_message: OnMessage) -> Any:
        end_leftovers(self.directory.mark)  # of a run that was killed
        copy_out(self.directory)
        remove(self.directory.scratch)
        manifest = read_manifest(self.bundle)
        require_complete(self.bundle, manifest)
        standing = standing_of(self.bundle, manifest, self.settings.trusted)
        minified = RunDirectory(minified_beside(self.bundle))
        counts = not self.fresh and minified.is_about(identity)
        forked_here = self.start is not None and not self.started_before
        request = SearchRequest(
            job=self.job,
            bundle=str(self.bundle.resolve()),
            directory=str(self.directory.path),
            settings=msgspec.to_builtins(replace(self.settings, trusted=standing.trusted)),
            seed=str(seed_of(identity)),
            known=str(minified.path) if counts else "",
            recorded=standing.own and not self.oracle,
            asked=asked,
            warm=not forked_here and self.executor is None,
            rehearse=forked_here,
            parent=os.getpid(),
            mark=self.directory.mark,
            stays=self.started_before,
            lock=-1 if self.started_before else lock,
        )
        environ = {
            **compiler_environment(manifest.ambient.environ, own=standing.own),
            **standing.environ,
            **ONE_THREAD,
        }
        if devices_of(manifest):
            query_devices_without_driver(environ)
        else:
            hide_devices(environ)
        with sandbox_for(
            self.bundle,
            manifest,
            standing,
            seed=seed_of(identity),
            scratch=self.directory.scratch,
            oracle=self.oracle,
            on_phase=lambda phase: on_message({"phase": phase}),
        ) as sandbox:
            with self._lend_executor(environ, confined=sandbox is not None) as channel:
                request = replace(request, channel=channel)
                if sandbox is None:
                    return self._run_process(request, environ, on_message)
                with working_copy(self.directory, sandbox) as inner:
                    known = copy_known(minified, sandbox) if counts else ""
                    confined = replace(request, directory=str(inner.path), known=str(known), parent=0)
                    answer = self._run_process(confined, environ, on_message, sandbox)
            answer = answer_outside(answer, self.directory, inner.path, self.bundle)
            write_json(self.directory.result, answer)
            return answer

    def _lend_executor(
        self, environ: Mapping[str, str], *, confined: bool
    ) -> AbstractContextManager[Channel | None]:
        """Lend the executor to the search process, if there is one."""
        if self.executor is None:
            return nullcontext()
        site = Site(
            run=new_run_id(),
            environ={**telling_environment(), **environ},
            confined=confined,
            versions=versions_here(),
        )
        return relay(self.executor, site, self.settings.jobs)

    def _run_process(
        self,
        request: SearchRequest,
        environ: Mapping[str, str],
        on_message: OnMessage,
        sandbox: Sandbox | None = None,
    ) -> Any:
        """Run the search process, and again if it died while warming up; return its answer or raise."""
        named: list[str] = []

        def take(message: Mapping[str, Any]) -> None:
            named.extend(filter(None, [message.get("sandbox")]))
            on_message(message)

        environ = {**environ, "TORCHINDUCTOR_CACHE_DIR": str(RunDirectory(Path(request.directory)).cache)}
        outcome = run_search(request, environ=environ, on_message=take, sandbox=sandbox, start=self.start)
        if outcome.result is None and outcome.error is None and outcome.phase == "warm":
            # It died while warming up: the compiler under test may crash there.
            again = replace(request, warm=False)
            outcome = run_search(again, environ=environ, on_message=take, sandbox=sandbox)
        if outcome.result is not None:
            return {**understood(outcome.result, dict[str, Any]), "sandbox": "".join(named[:1])}
        raise_reported(outcome)
        if outcome.signal == "SIGKILL":
            raise TorchReproError(
                f"the search process was killed, perhaps by the system for lack of memory{self.kept()}",
                next_step="the same command continues from there; fewer --jobs need less memory",
            )
        raise HarnessError(
            f"the search process itself died ({outcome.death}){self.kept()}\n{outcome.output_tail}"
        )
