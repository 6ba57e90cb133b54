"""Limit the memory, threads and temporary files of a candidate; clean up after a killed run.

`kill -9` leaves no time to clean up, and the compilers that a child has started do not die with it. So
everything that a run starts carries the run's mark in its environment, which every process inherits and
`/proc` shows, and the names of its temporary directories carry it too: `end_leftovers` finds both, whatever
the parent of a process is by now. The command does that when its search process has ended, and before it
starts one: that finds what is left if both were killed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_KEPT_FREE = 0.2
"""Share of the memory that is left to the search itself and to other processes."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

MARK = "TORCHREPRO_RUN_MARK"
"""Environment variable with the mark of a run, by which its processes are found."""
_TERM_SECONDS = 2.0
_GRACE = 5.0


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _cpu_quotas())]))


def thread_share(workers: int) -> int:
    """Return how many threads one of several workers may use."""
    return max(1, usable_cores() // workers)


def usable_memory() -> int:
    """Return the bytes of memory of the machine, or of the container if that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [*_in_cgroups("", "memory.max"), *_in_cgroups("memory", "memory.limit_in_bytes")]
    return min([physical, *(int(limit) for limit in limits if limit.isdigit())])


def memory_share(workers: int) -> int:
    """Return the bytes that one of several workers may use; together they leave `_KEPT_FREE` free."""
    return int(usable_memory() * (1 - _KEPT_FREE)) // workers


def limit_memory(more: int | None) -> None:
    """Limit this process to this many bytes more than it has now; None lifts the limit.

    It is a limit on private writable memory (`RLIMIT_DATA`): an allocation beyond it fails with an error that
    Python and torch can report. A limit on addresses would count what is only reserved, and one on resident
    memory does not exist. Where the memory in use is unknown (macOS), there is no limit.
    Programs that this one starts have the same limit, each for itself.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = _data_in_use()
    wanted = hard if more is None or used is None else used + more
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def limit_threads(threads: int) -> None:
    """Compute and compile with this many threads from now on, in this process and its children.

    The compilers of inductor's pool are not counted: a candidate compiles in its own process
    (`engine/processes/fresh_process.py`).
    """
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _data_in_use() -> int | None:
    for line in _text(_STATUS).splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) * 1024
    return None


def _cpu_quotas() -> Iterator[float]:
    """Yield the CPU quotas, in cores, of the containers around this process, of cgroups v1 and v2."""
    second = (text.split() for text in _in_cgroups("", "cpu.max"))
    first = zip(_in_cgroups("cpu", "cpu.cfs_quota_us"), _in_cgroups("cpu", "cpu.cfs_period_us"), strict=True)
    for quota, period in itertools.chain(second, first):
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _in_cgroups(controller: str, file: str) -> list[str]:
    """Return the text of a file in this process's cgroup and its parents; no controller: cgroups v2."""
    found = []
    for line in _text(_OWN_CGROUPS).splitlines():
        _, controllers, own = line.split(":", 2)
        if controller in controllers.split(","):
            groups = [Path(own), *Path(own).parents]
            found += [_text(_CGROUPS / controllers / str(group).lstrip("/") / file) for group in groups]
    return [text for text in found if text]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def use_scratch(directory: str) -> None:
    """Put temporary files here from now on, also those of g++; the parent removes them after the task."""
    os.mkdir(directory)
    os.environ["TMPDIR"] = tempfile.tempdir = directory


def scratch_directory() -> Path:
    """Make a directory for temporary files, which is removed with the leftovers of this run."""
    return Path(tempfile.mkdtemp(prefix=_prefix(os.environ.get(MARK, "unmarked"))))


@contextmanager
def owned_directory(prefix: str) -> Iterator[Path]:
    """Yield a temporary directory, which is removed afterwards; `prefix` begins with `torchrepro-`.

    First those of this prefix whose process was killed are removed: it held a lock in each as long as it
    lived. What runs for a directory carries its name as a mark, and ends with it.
    """
    for former in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError), open(former / "lock", "rb") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_leftovers(former.name)
            shutil.rmtree(former, ignore_errors=True)
    directory, owner = Path(tempfile.mkdtemp(prefix=prefix)).resolve(), os.getpid()
    with open(directory / "lock.new", "xb") as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
            (directory / "lock.new").rename(directory / "lock")  # it has its name once it is locked
            yield directory
        finally:
            # A fork frees what other threads hold, and ends this generator there too.
            if os.getpid() == owner:
                shutil.rmtree(directory, ignore_errors=True)  # still locked: nobody else removes it


def end_leftovers(mark: str) -> int:
    """Kill every other process that carries the mark, and return how many there were.

    SIGTERM first, as in `child.end_group`. Only Linux shows the environment of a process.
    """
    ended: set[int] = set()
    started = time.monotonic()
    while (found := _carrying(mark)) and time.monotonic() - started < _TERM_SECONDS + _GRACE:
        late = time.monotonic() - started > _TERM_SECONDS
        for pid in found if late else found - ended:
            with suppress(ProcessLookupError, PermissionError):  # ended by itself in the meantime
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        ended |= found
        time.sleep(0.02)
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix(mark)}*"):
        shutil.rmtree(path, ignore_errors=True)
    return len(ended)


def _prefix(mark: str) -> str:
    return f"torchrepro-{mark}-"


def _carrying(mark: str) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue  # gone, or another user's
        if f"{MARK}={mark}".encode() in environ.split(b"\0"):
            found.add(int(entry.name))
    return found
