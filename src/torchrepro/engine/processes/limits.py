"""What one candidate may use: memory, threads, temporary files; and how what a killed run leaves is ended.

`kill -9` leaves no time to clean up, and the compilers that a child has started do not die with it. So
everything that a run starts carries the run's mark in its environment, which every process inherits and
`/proc` shows, and the names of its temporary directories carry it too: `end_leftovers` finds both, whatever
the parent of a process is by now. The command does that when its search process has ended, and before it
starts one: that finds what is left if both were killed.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_KEPT_FREE = 0.2
"""Of the memory, for the search itself and for everybody else."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

MARK = "TORCHREPRO_RUN_MARK"
"""Set to the mark of a run in the environment of what must not be left behind."""
_TERM_SECONDS = 2.0
_GRACE = 5.0


def usable_cores() -> int:
    """The cores that this process may use: what the scheduler and the container leave of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _cpu_quotas())]))


def thread_share(workers: int) -> int:
    """Threads of one of several workers."""
    return max(1, usable_cores() // workers)


def usable_memory() -> int:
    """Bytes of the machine, or of the container where that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [*_in_cgroups("", "memory.max"), *_in_cgroups("memory", "memory.limit_in_bytes")]
    return min([physical, *(int(limit) for limit in limits if limit.isdigit())])


def memory_share(workers: int) -> int:
    """Bytes that one of several workers may have: together they leave a part of the memory free."""
    return int(usable_memory() * (1 - _KEPT_FREE)) // workers


def limit_memory(more: int | None) -> None:
    """Let this process have so many bytes more than it has now; None lifts the limit.

    It is a limit on private writable memory (`RLIMIT_DATA`), which an allocation beyond it meets as an error
    that Python and torch can report. A limit on addresses would count what is only reserved, and one on
    resident memory does not exist. Where the system does not tell what a process has (macOS), there is none.
    Programs that this one starts have the same limit, each for itself.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = _data_in_use()
    wanted = hard if more is None or used is None else used + more
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def limit_threads(threads: int) -> None:
    """Compute and compile with so many threads from now on, in this process and in what it starts.

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
    """The cores that the containers around this process may use, by both versions of cgroups."""
    second = (text.split() for text in _in_cgroups("", "cpu.max"))
    first = zip(_in_cgroups("cpu", "cpu.cfs_quota_us"), _in_cgroups("cpu", "cpu.cfs_period_us"), strict=True)
    for quota, period in itertools.chain(second, first):
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _in_cgroups(controller: str, file: str) -> list[str]:
    """What a file says in this process's group and in those around it; no controller: the second version."""
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
    """Put temporary files here from now on, those of g++ as well; the parent removes it after the task."""
    os.mkdir(directory)
    os.environ["TMPDIR"] = tempfile.tempdir = directory


def scratch_directory() -> Path:
    """Make a directory for temporary files, which is removed with the leftovers of this run."""
    return Path(tempfile.mkdtemp(prefix=_prefix(os.environ.get(MARK, "unmarked"))))


def end_leftovers(mark: str) -> int:
    """End every process that carries the mark, this one excepted, and return how many there were.

    First politely, as in `child.end_group`. Only Linux tells the environment of a process.
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
