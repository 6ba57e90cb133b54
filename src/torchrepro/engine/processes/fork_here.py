"""Fork a search process off the process in which a failure has just happened.

That process has what the search needs: torch and the compiler, imported and warm, and the user's passes,
operators and modules. A fork copies one thread and all locks, so the caller is a thread of its own
(`catch/search_here.py`): it has no OpenMP team, which would not survive (libgomp keeps one for each thread),
and none of the modes and contexts that the failing call has in thread-local storage. Whether forks of the
child work is not known until one has been tried, so the search begins with that (`engine/search/setup.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from torchrepro.engine.processes.child import Child, ForkedProcess, Reporter, reports_and_output
from torchrepro.engine.processes.fork_safety import device_in_use, fork
from torchrepro.engine.processes.fresh_process import serve
from torchrepro.engine.processes.signals import redirect, start_afresh
from torchrepro.state.ambient import has_registered_code
from torchrepro.torch_api.dynamo import renew_locks
from torchrepro.torch_api.inductor import compile_in_this_thread


def why_not_here() -> str:
    """Return why no search process can be forked off this one; empty if nothing speaks against it."""
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
    with reports_and_output() as (reports, writing_end, output):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise the child would write the buffered output again
        pid = fork()
        if pid == 0:
            try:
                os.setsid()
                start_afresh()
                redirect(output.fileno())
                for descriptor in (requests, reports):
                    os.close(descriptor)
                os.environ.update(environ)
                renew_locks()
                compile_in_this_thread()
                in_child()
                serve(reading_end, Reporter(writing_end))
            finally:
                # The user's exit handlers must not run a second time.
                os._exit(1)
        os.close(reading_end)
        return Child(ForkedProcess(pid), output, reports, requests)
