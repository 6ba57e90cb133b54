"""How a search process starts: it sees to its own end first, then imports torch.

Started as `python -m torchrepro.engine.search.process_main REPORT_FD` with a `SearchRequest` as JSON on
standard input. Importing torch takes seconds, and whoever asked may be killed in them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from typing import Any

import msgspec

from torchrepro.engine.processes.reports import Reporter
from torchrepro.engine.search.parent import SearchRequest

_PR_SET_PDEATHSIG = 1


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=SearchRequest)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _die_with(request.parent)
    # Candidates must not hold the lock of the run: it goes when this process does.
    os.set_inheritable(request.lock, False)
    os.register_at_fork(after_in_child=lambda: os.close(request.lock))
    reporter = Reporter(descriptor)
    reporter.answer(lambda: _search(request, reporter))
    # No interpreter teardown: a library that crashes at exit must not overwrite the answer.
    os._exit(0)


def _search(request: SearchRequest, reporter: Reporter) -> Any:
    """Only here is the search imported, and torch with it."""
    module, _, function = request.job.partition(":")
    return getattr(importlib.import_module(module), function)(request, reporter)


def _die_with(parent: int) -> None:
    """Be told with SIGTERM when the parent dies, however it does (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)  # it died before it could be asked to tell


if __name__ == "__main__":
    main()
