"""Fork this process, and check first whether that is safe.

A child has only the forking thread, and all locks as they were. A thread that is missing in the child leaves
its locks locked and its queues unserved: the child hangs, and a hang is a verdict. So `why_not_fork` checks
before each fork of a search process that there is no other thread, whatever has started it.

The process in which a failure has just happened has threads, and is forked as a search process all the same
(`start_fork`): it has torch and the compiler imported and warm, and the user's passes, operators and modules.
There the caller is a thread of its own (`catch/search_here.py`), without an OpenMP team, which would not
survive (libgomp keeps one for each thread), and without the modes and contexts of the failing call. Whether
forks of the child work is not known until one has been tried (`engine/search/setup.py`).

Threads of torch and its dependencies, and how each is handled (`prepare_to_fork`; torch 2.11 to 2.15):

- OpenMP's team: with one thread there is none. Children choose their own number.
- OpenBLAS (in NumPy) has threads as soon as it is imported, and ends them itself when the process forks.
- tqdm, which inductor shows its progress with, has a thread that monitors progress bars: switched off.
- autograd's threads for devices: only where an accelerator is in use, and then a fork is not safe anyway.
- the CUDA driver's thread, which a device query starts, even if no device is visible: harmless then,
  because it only waits for events of devices (`hide_devices`).
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from torchrepro.engine.processes.child import Child, ForkedProcess, Reporter, reports_and_output
from torchrepro.engine.processes.fresh_process import serve
from torchrepro.engine.processes.signals import redirect, start_afresh
from torchrepro.torch_api.dynamo import renew_locks
from torchrepro.torch_api.inductor import compile_in_this_thread

_TASKS = Path("/proc/self/task")
_DRIVER = "cuda"
"""Prefix of the names of the CUDA driver's threads (`cuda00002c0000c`, seen with CUDA 13)."""


def prepare_to_fork() -> None:
    """Keep this process single-threaded from now on, as far as torch and what it uses are concerned."""
    import torch

    torch.set_num_threads(1)
    # If a parent process ignores SIGCHLD, the exit status of a child is lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if importlib.util.find_spec("tqdm") is not None:
        importlib.import_module("tqdm").tqdm.monitor_interval = 0


def hide_devices(environ: MutableMapping[str, str]) -> None:
    """Hide all GPUs from a process with this environment: after a device query it could not be forked."""
    environ["CUDA_VISIBLE_DEVICES"] = ""
    query_devices_without_driver(environ)


def query_devices_without_driver(environ: MutableMapping[str, str]) -> None:
    """Let torch count GPUs without the driver: if a process has started it, its forks may not be able to."""
    environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"


def why_not_fork(*, driver_may_run: bool = False) -> str:
    """Return why a fork of this process would not be safe; empty if it is.

    If the CUDA driver runs and no device is in use, a child may use one, and has to try that first (it worked
    with CUDA 13): importing inductor starts the driver.
    """
    if sys.platform != "linux":
        return f"on {sys.platform} libraries of the system do not survive a fork"
    if device := device_in_use():
        return device  # first: the fork below, which only counts threads, may hang with a context
    if len(_threads()) > 1:
        # Some libraries end their threads when the process forks (OpenBLAS does): count after a fork.
        child = _fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    others = [name for number, name in _threads().items() if number != os.getpid()]
    if driver_may_run or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        others = [name for name in others if not name.startswith(_DRIVER)]
    return f"it has {len(others)} other threads ({', '.join(sorted(others))})" if others else ""


def why_not_here() -> str:
    """Return why no search process can be forked off this one; empty if nothing speaks against it."""
    from torchrepro.state.ambient import has_registered_code

    if sys.platform != "linux":
        return f"on {sys.platform} libraries of the system do not survive a fork"
    if device := device_in_use():
        return device
    if has_registered_code():
        return "lowerings or decompositions that you registered cannot be taken back in this process"
    return ""


def start_fork(environ: Mapping[str, str], in_child: Callable[[], None] = lambda: None) -> Child:
    """Fork a process that waits for jobs, as `start_interpreter` starts one; it runs `in_child` first."""
    reading_end, requests = os.pipe()

    def wait_for_jobs(reporter: Reporter) -> None:
        os.close(requests)
        os.environ.update(environ)
        renew_locks()
        compile_in_this_thread()
        in_child()
        serve(reading_end, reporter)

    try:
        return fork_child(wait_for_jobs, requests)
    finally:
        os.close(reading_end)


def fork_child(work: Callable[[Reporter], None], requests: int | None = None) -> Child:
    """Fork a process that does some work and reports. `requests` is the end of a pipe that it reads."""
    with reports_and_output() as (reports, writing_end, output):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise the child would write the buffered output again
        pid = _fork()
        if pid == 0:
            try:
                os.setsid()
                start_afresh()
                redirect(output.fileno())
                os.close(reports)
                work(Reporter(writing_end))
            finally:
                # No interpreter teardown: a library that crashes at exit must not overwrite the answer, and
                # the parent's exit handlers must not run in the child.
                os._exit(1)
        return Child(ForkedProcess(pid), output, reports, requests)


def _fork() -> int:
    """Call `os.fork` without the DeprecationWarning of Python 3.12 about threads: `why_not_fork` decides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _threads() -> dict[int, str]:
    """Return the names of all threads, native ones included, by thread id."""
    found = {}
    for task in _TASKS.iterdir():
        try:
            found[int(task.name)] = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


def device_in_use() -> str:
    """Return which accelerator this process uses, and why it cannot be forked then; empty if none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    from torchrepro.torch_api.generators import is_initialised

    # The kind that torch was built for. Not by a query of the driver, which could start threads.
    kind = torch.accelerator.current_accelerator()
    if kind is None or not is_initialised(kind.type):
        return ""
    return f"{kind.type} is in use, and its context would not work in a child"
