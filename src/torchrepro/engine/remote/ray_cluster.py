"""A Ray cluster as a `concurrent.futures.Executor`. Needs no torch; Ray is an extra (`torchrepro[ray]`).

Ray schedules tasks, moves large arguments through its object store once for each node, and runs a task again
if its worker or node dies. A candidate that crashes or hangs ends a child of a process of ours on the worker
(`worker.py`), never Ray's worker.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torchrepro.bundle.manifest import devices_of
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.remote.messages import Blob
from torchrepro.nouns.errors import TorchReproError, in_a_line

P = ParamSpec("P")
T = TypeVar("T")
RAY = "ray"
_CLIENT = "ray://"
_CONNECT_SECONDS = 10.0
_RETRIES = 5
"""How often a task runs again whose worker or node has died."""
_KEPT = 64
"""Blobs that stay in the object store for later tasks; those of tasks under way always do."""


@contextmanager
def ray_cluster(address: str) -> Iterator[RayCluster]:
    """Connect to a cluster: `ray`, the one that runs on this machine or that RAY_ADDRESS names, or `ray://`.

    A process that is connected already stays so, and its connection is used.
    """
    ray = _ray_package()
    if ray.is_initialized():
        yield RayCluster(ray)
        return
    _connect(ray, address)
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


def _ray_package() -> Any:
    try:
        return importlib.import_module(RAY)
    except ImportError as exc:
        raise TorchReproError(
            f"Ray cannot be imported ({in_a_line(exc)})", next_step="pip install 'torchrepro[ray]'"
        ) from exc


def _connect(ray: Any, address: str) -> None:
    named = os.environ.get("RAY_ADDRESS", "") if address == RAY else address
    if address != RAY and not named.startswith(_CLIENT):
        raise _no_address(address)
    _require_listener(named)
    try:
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        ray.init("auto" if address == RAY else address, **quiet)
    except ConnectionError as exc:
        if address != RAY:
            raise _refused(address, exc) from exc
        raise TorchReproError(
            "no Ray cluster was found on this machine, and RAY_ADDRESS names none that answers",
            next_step="start one with `ray start --head`, or name one with --on ray://HOST:PORT",
        ) from exc
    except (RuntimeError, ValueError, OSError) as exc:
        # Ray compares its own version and that of Python with those of the cluster.
        raise _refused(address, exc) from exc


def _require_listener(address: str) -> None:
    """Raise at once for a wrong address: Ray would try for more than a minute."""
    host, colon, port = address.removeprefix(_CLIENT).rpartition(":")
    if not colon or not host or not port.isdigit():
        if address.startswith(_CLIENT):
            raise _no_address(address)
        return  # `auto`, or nothing: Ray looks on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as exc:
        raise _refused(address, exc) from exc


def _no_address(address: str) -> TorchReproError:
    return TorchReproError(
        f"{address!r} is no address of a cluster", next_step="write --on ray or --on ray://HOST:PORT"
    )


def _refused(address: str, exc: BaseException) -> TorchReproError:
    return TorchReproError(
        f"cannot connect to the cluster at {address} ({in_a_line(exc)})",
        next_step="check the address (the head's port for clients is 10001 by default) "
        "and that Ray and Python have the same versions there",
    )


class RayCluster:
    """A connection to a cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def executor_for(self, bundle: Path) -> RayExecutor:
        """Return an executor whose tasks bear the bundle's name; each has a GPU if the bundle needs one."""
        return self.executor(bundle.name, on_device=bool(devices_of(read_manifest(bundle))))

    def executor(self, name: str, *, on_device: bool = False) -> RayExecutor:
        """Return an executor whose tasks bear a name in Ray's dashboard, each with a GPU if `on_device`."""
        kind = "GPU" if on_device else "CPU"
        slots = int(self._ray.cluster_resources().get(kind, 0))
        if slots < 1:
            raise TorchReproError(
                f"the cluster has no {kind}",
                next_step="add a node that has one, or leave out --on to run it on this machine",
            )
        return RayExecutor(self._ray, name, slots=slots, on_device=on_device)


class RayExecutor(concurrent.futures.Executor):
    """Runs calls as tasks of a cluster. A `Blob` among the arguments goes through the object store once."""

    def __init__(self, ray: Any, name: str, *, slots: int, on_device: bool) -> None:
        self._ray = ray
        self._max_workers = slots  # as the pools of the standard library have it
        self._name = name
        # By default Ray ends a worker after each task on a GPU, and with it our warm process.
        self._task = ray.remote(num_cpus=1, num_gpus=int(on_device), max_retries=_RETRIES, max_calls=0)(_call)
        self._blobs: OrderedDict[str, Any] = OrderedDict()
        self._futures: set[_TaskFuture[Any]] = set()
        self._lock = threading.Lock()

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        return self._started(self._name, fn, args, kwargs)

    def submit_as(self, label: str, fn: Callable[..., T], /, *args: Any) -> concurrent.futures.Future[T]:
        """Submit a call that the dashboard lists under a label after the name."""
        return self._started(f"{self._name} {label}", fn, args, {})

    def _started(
        self, name: str, fn: Callable[..., T], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> concurrent.futures.Future[T]:
        task = self._task.options(name=name).remote(fn, kwargs, *map(self._argument, args))
        future: _TaskFuture[T] = _TaskFuture(self._ray, task)
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        task.future().add_done_callback(future.take)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            under_way = list(self._futures)
        if cancel_futures:
            for future in under_way:
                future.cancel()
        if wait:
            concurrent.futures.wait(under_way)

    def _argument(self, argument: Any) -> Any:
        """Return a reference to a blob in the object store, where it is put once; other arguments as is."""
        if not isinstance(argument, Blob):
            return argument
        with self._lock:
            if argument.digest not in self._blobs:
                self._blobs[argument.digest] = self._ray.put(argument)
            self._blobs.move_to_end(argument.digest)
            while len(self._blobs) > _KEPT:
                self._blobs.popitem(last=False)
            return self._blobs[argument.digest]


class _TaskFuture(concurrent.futures.Future[T]):
    """The result of a task. It can be cancelled while it runs, which no pool of the standard library can."""

    def __init__(self, ray: Any, task: Any) -> None:
        super().__init__()
        self._ray, self._task = ray, task

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        with suppress(Exception):  # the cluster is gone, and the task with it
            self._ray.cancel(self._task)
        return True

    def take(self, done: concurrent.futures.Future[T]) -> None:
        """Take over how the task ended, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        exc = done.exception()
        if exc is None:
            self.set_result(done.result())
        else:
            self.set_exception(_told(exc))


def _call(fn: Callable[..., T], kwargs: Mapping[str, Any], *args: Any) -> T:
    return fn(*args, **kwargs)


def _told(exc: BaseException) -> BaseException:
    """Return an error of Ray's as a fact with the next step; any other as it is."""
    cause = getattr(exc, "cause", None) or exc
    missing = cause if isinstance(cause, ImportError) else None
    if missing is not None or "ModuleNotFoundError" in str(exc):
        named = in_a_line(missing) if missing else "ModuleNotFoundError"
        return TorchReproError(
            f"torchrepro cannot be imported on a worker of the cluster ({named})",
            next_step="install torchrepro and torch on all nodes, in the environment that Ray runs in",
        )
    if type(exc).__module__.partition(".")[0] == RAY:
        return TorchReproError(
            f"the cluster could not run a task ({type(exc).__name__}: {in_a_line(exc)})",
            next_step="look at its nodes with `ray status`; the same command continues from here",
        )
    return cause
