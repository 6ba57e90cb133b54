"""Run candidates in forked children of this process while a fork is safe, else in reusable workers.

A task is a job on a repro. A forked child starts as warm as its parent, in milliseconds, and has the repro
in its memory; before each fork it is checked that forking is safe (`fork_safety.py`). A worker is a fresh
process that reads a bundle; it is reused for the next task (`workers.py`). Both have the same interface.
There are no threads: `wait` polls the children.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchrepro.engine.processes.child import (
    Child,
    ForkedProcess,
    OnMessage,
    Outcome,
    Reporter,
    describe_error,
    listen,
)
from torchrepro.engine.processes.fork_safety import fork_child, prepare_to_fork, why_not_fork
from torchrepro.engine.processes.fresh_process import job_named
from torchrepro.engine.processes.limits import (
    limit_memory,
    limit_threads,
    scratch_directory,
    thread_share,
    usable_cores,
    use_scratch,
)
from torchrepro.engine.processes.signals import die_with, undisturbed
from torchrepro.engine.processes.workers import Workers
from torchrepro.engine.sandbox.seccomp import give_up_signals
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.errors import HarnessError
from torchrepro.nouns.repro import Place, Repro
from torchrepro.torch_api import pytree as pytree
from torchrepro.torch_api.generators import accelerators, is_device_fault, is_initialised
from torchrepro.torch_api.names import COMPILE_FX

_START_SECONDS = 300.0
_ANY_SIZE = 1 << 62
_CONTEXTS = 8
"""Default limit of workers on a device: each has a context there, of half a gigabyte."""
_AHEAD = 2 * _CONTEXTS
"""Workers that are forked ahead: a fault of the device ends one."""
_PREPARED = 3
"""Workers that are warmed up at once, at least: as many as the first queries need."""
_LATE_SECONDS = 30.0
"""A first compilation that takes longer than this in a fork may never end."""
_BEFORE_COMPILING = ("start", "eager")
_PRELOADED = ("torchrepro.execute.judge_repro", COMPILE_FX)

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Task:
    """A job on a repro, and what it may use. Compared by identity."""

    job: str
    """`package.module:function(repro, payload, phase)`: calls `phase(name)` as phases begin, and returns
    plain data."""
    repro: Repro
    payload: Mapping[str, Any] = field(default_factory=dict)
    time_limit: float = 300.0
    memory_limit: int | None = None
    """Bytes that the child may have in addition to what it starts with; None: no limit."""
    local: bool = False
    """Its payload names files of this machine, so no other machine can run it."""
    number: int = field(default_factory=lambda: next(_numbers))


class Executor(AbstractContextManager["Executor"]):
    """Runs tasks, at most `workers` at a time (by default one for each core). Has to be closed.

    Each task has `threads` threads, by default its share of the cores. It can be used again after an
    interrupt. `waiting` is entered while it waits, and may raise. `reusable`
    workers are left to the executors after this one. `on_event` is called when the first task is sent, and
    when a worker is ready for its first one. `prove_forks` is called if the first task that compiles dies or
    is late; it raises if no fork of this process could have compiled.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        threads: int | None = None,
        forks: bool = True,
        reusable: Workers | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_event: Callable[[str], None] = lambda event: None,
        prove_forks: Callable[[], None] | None = None,
    ) -> None:
        self.workers = usable_cores() if workers is None else workers
        if self.workers < 1:
            raise ValueError(f"an executor has at least one worker, not {workers}")
        self._forks = forks
        self._waiting = waiting
        self._on_event = on_event
        self._prove_forks = prove_forks
        self._threads = thread_share(self.workers) if threads is None else threads
        self._queue: deque[Task] = deque()
        self._running: dict[Task, Child] = {}
        self._ended: deque[tuple[Task, Outcome]] = deque()
        self._reusable = reusable if reusable is not None else Workers()
        self._closes_workers = reusable is None
        self._wants_fresh: set[Task] = set()
        self._ready: list[int] = []
        self._scratch: Path | None = None

    def start(self, task: Task) -> None:
        """Run a task as soon as a worker is free. Never blocks."""
        self._queue.append(task)
        self._on_event("first task")
        self._fill()

    def wait(self) -> tuple[Task, Outcome]:
        """Return the next task that ends, and its outcome. Raises if no task is under way."""
        try:
            with self._waiting():
                return self._next()
        except BaseException:
            # Ctrl-C, or a bug: no caller waits for these candidates any more.
            for task in (*self._queue, *self._running):
                self.cancel(task)
            self._ended.clear()
            raise

    def cancel(self, task: Task) -> None:
        """Kill a task with everything that it has started. Unknown tasks are ignored."""
        self._queue = deque(other for other in self._queue if other is not task)
        self._ended = deque(ended for ended in self._ended if ended[0] is not task)
        with undisturbed():
            if task in self._running:
                self._running.pop(task).end()
                self._remove_scratch(task)

    def close(self) -> None:
        """Kill all processes and remove all temporary files."""
        with undisturbed():
            for task in (*self._queue, *self._running):
                self.cancel(task)
            if self._closes_workers:
                self._reusable.close()
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _next(self) -> tuple[Task, Outcome]:
        while self._queue or self._running or self._ended:
            self._fill()
            if self._ended:
                return self._ended.popleft()
            for task, child in list(self._running.items()):
                outcome = child.outcome()
                if outcome is not None and self._retire(task, child, outcome):
                    self._doubt_forks(outcome)
                    self._fill()  # the next task starts before the caller handles this outcome
                    return task, outcome
            self._doubt_forks()
            listen(list(self._running.values()))
        raise HarnessError("waiting for a task, and none is under way")

    def _doubt_forks(self, outcome: Outcome | None = None) -> None:
        """Prove that forks work if a task has died or is late; once one has compiled, they do."""
        prove = self._prove_forks
        if prove is None:
            return
        if outcome is None:
            doubtful = any(child.seconds > _LATE_SECONDS for child in self._running.values())
        else:
            doubtful = outcome.result is None and outcome.error is None
        if doubtful or (outcome is not None and outcome.phase not in _BEFORE_COMPILING):
            self._prove_forks = None
        if doubtful:
            prove()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.workers:
            with undisturbed():
                task = self._queue.popleft()
                job = job_named(task.job)  # imported here, so that no forked child has to
                self._scratch = self._scratch or scratch_directory()
                self._forks = self._forks and not why_not_fork()
                begun = self._fork(task, job) if self._forks else self._hand_over(task)
                if isinstance(begun, Child):
                    self._running[task] = begun
                else:
                    self._ended.append((task, begun))

    def _retire(self, task: Task, child: Child, outcome: Outcome) -> bool:
        """Kill or keep the process of an ended task. Return False if the task has to run again."""
        with undisturbed():
            del self._running[task]
            is_worker = child.serves
            if is_worker:
                self._reusable.put_back(child)
            else:
                child.end()
            self._remove_scratch(task)
            if not is_worker or child.answered or outcome.timed_out:
                return True
            if child.jobs == 1 and outcome.phase != "spawn":
                return True
            if child.jobs == 1 and not isinstance(child.process, ForkedProcess):
                raise HarnessError(f"a worker could not be started:\n{outcome.output_tail}")
            # An earlier task, or warming up, may have damaged this worker: the task runs in another one.
            self._wants_fresh.add(task)
            self._queue.appendleft(task)
            return False

    def _scratch_of(self, task: Task) -> Path:
        """Return the directory for a task's temporary files, which is removed after the task."""
        assert self._scratch is not None
        return self._scratch / str(task.number)

    def _remove_scratch(self, task: Task) -> None:
        shutil.rmtree(self._scratch_of(task), ignore_errors=True)

    # Forked children.

    def _fork(self, task: Task, job: Callable[..., Any]) -> Child:
        parent = os.getpid()

        def work(reporter: Reporter) -> Any:
            die_with(parent)
            for sibling in self._running.values():
                sibling.let_go()
            self._reusable.let_go()
            use_scratch(str(self._scratch_of(task)))
            limit_threads(self._threads)
            limit_memory(task.memory_limit)
            give_up_signals()
            return job(task.repro, task.payload, reporter)

        child = fork_child(lambda reporter: reporter.answer(partial(work, reporter)))
        child.begin(task.time_limit)
        return child

    # Workers.

    def _hand_over(self, task: Task) -> Child | Outcome:
        """Send a task to a worker and return that; the error as outcome if the repro cannot be saved."""
        try:
            request = self._request(task)
        except Exception as exc:
            self._remove_scratch(task)
            return Outcome(error=describe_error(exc), phase="load")
        worker = self._worker_for(task)
        # The time limit of a task begins with its job, after the worker has started and loaded the repro.
        worker.begin(_START_SECONDS, phase="spawn", may_set_clock=True, on_message=self._follow(worker))
        worker.ask({"job": "torchrepro.engine.processes.executor:run_task", "payload": request})
        return worker

    def _worker_for(self, task: Task) -> Child:
        """Return an idle worker, or one without a past for a task that another one has died of."""
        fresh = task in self._wants_fresh
        self._wants_fresh.discard(task)
        return self._reusable.take(fresh=fresh, most=self.workers - len(self._running))

    def _follow(self, worker: Child) -> OnMessage:
        """Return a callback that reports when a worker has loaded its first task."""

        def take(message: Mapping[str, Any]) -> None:
            pid = worker.process.pid
            if message.get("phase") == "start" and pid not in self._ready:
                self._ready.append(pid)
                self._on_event(f"worker {len(self._ready)} ready")

        return take

    def _request(self, task: Task) -> dict[str, Any]:
        """Return the request for a worker; the repro of the task is saved as a bundle."""
        from torchrepro.script.save_bundle import save_bundle

        scratch = self._scratch_of(task)
        scratch.mkdir()
        bundle = save_bundle(task.repro, scratch / "bundle", size_cap=_ANY_SIZE, script=False, seal=False)
        return {
            "job": task.job,
            "bundle": str(bundle),
            "payload": dict(task.payload),
            "scratch": str(scratch / "tmp"),
            "threads": self._threads,
            "time_limit": task.time_limit,
            "memory_limit": task.memory_limit,
        }


def run_task(request: Mapping[str, Any], reporter: Reporter) -> Any:
    """Run a task in a worker: as in a forked child, once its repro is loaded."""
    from torchrepro.bundle.load import load_verified

    reporter.phase("load")
    for name in _PRELOADED:
        importlib.import_module(name)
    use_scratch(request["scratch"])
    limit_threads(request["threads"])
    give_up_signals()
    repro = load_verified(Path(request["bundle"]))
    reporter.send(phase="start", time_limit=request["time_limit"])
    limit_memory(request["memory_limit"])
    try:
        return job_named(request["job"])(repro, request["payload"], reporter)
    finally:
        limit_memory(None)
        if _device_is_lost():
            reporter.send(worn_out=True)


def _device_is_lost() -> bool:
    """Return whether a kernel's fault makes everything on the device fail from now on."""
    for kind in filter(is_initialised, accelerators()):
        try:
            torch.get_device_module(kind).synchronize()
        except RuntimeError as exc:
            if is_device_fault(exc):
                return True
            raise
    return False


WORKERS = Workers()
"""The workers of this process, which outlive an executor."""


def fork_workers_ahead(devices: Collection[str], jobs: int | None, job: str) -> str:
    """Fork the workers for tasks on these devices, before this process uses one; return why it cannot."""
    prepare_to_fork()
    for name in _PRELOADED:
        importlib.import_module(name)
    workers = jobs or min(usable_cores(), _CONTEXTS)
    payload = {"devices": sorted(devices), "threads": thread_share(workers)}
    prepared = min(workers, max(_PREPARED, usable_cores() // 2))  # each keeps a core busy meanwhile
    return WORKERS.fork_ahead(_AHEAD, prepared=prepared, job=job, payload=payload)


def executor_for(
    repro: Repro,
    workers: int | None = None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    on_event: Callable[[str], None] = lambda event: None,
    prove_forks: Callable[[], None] | None = None,
    threads: int | None = None,
) -> Executor:
    """Return an executor for candidates of this repro."""
    forks = not why_not_forked(repro)
    if workers is None and devices_of(repro):
        workers = min(usable_cores(), _CONTEXTS)
    return Executor(
        workers,
        threads=threads,
        forks=forks,
        reusable=WORKERS,
        waiting=waiting,
        on_event=on_event,
        prove_forks=prove_forks if forks else None,
    )


def why_not_forked(repro: Repro) -> str:
    """Prepare this process for forking and return why candidates cannot be forked; empty if they can."""
    devices = devices_of(repro)
    if devices:
        return f"it runs on {', '.join(sorted(devices))}, whose context a fork does not share"
    prepare_to_fork()
    return why_not_fork()


def devices_of(repro: Repro) -> frozenset[str]:
    """Return the kinds of device in addition to the CPU that appear in a repro's graph and values."""
    held: list[Any] = [repro.inputs, repro.earlier, *repro.graph.parameters(), *repro.graph.buffers()]
    found = set()
    for module in repro.graph.modules():
        held += [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                found.update(_devices_named(node))
    found.update(tensor.device.type for _, tensor in tensors_in(held))
    if repro.place is Place.BEFORE_CAPTURE:
        # The user's code does not show its devices. The recorded generator states do.
        found.update(torch.device(name).type for name in repro.ambient.rng)
    return frozenset(found - {"cpu", "meta"})


def _devices_named(node: torch.fx.Node) -> set[str]:
    """Return the devices in a node's arguments; strings count only as `device=` or as `.cuda()`."""
    arguments = pytree.tree_leaves((node.args, node.kwargs))
    named: list[Any] = [value for value in arguments if isinstance(value, torch.device)]
    if isinstance(node.kwargs.get("device"), str):
        named.append(node.kwargs["device"])
    if node.op == "call_method" and node.target in ("cuda", "xpu"):
        named.append(node.target)
    return {torch.device(value).type for value in named}
