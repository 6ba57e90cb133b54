"""Start a search process: first make sure that it ends with its parent, then import torch.

Started as `python -m torchrepro.engine.search.process_main REPORT_FD` with a `SearchRequest` as JSON on
standard input. Importing torch takes seconds, in which the parent may be killed.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from torchrepro.engine.processes.executor import job_named
from torchrepro.engine.processes.process_groups import die_with
from torchrepro.engine.processes.reports import Reporter
from torchrepro.engine.search.parent import SearchRequest


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=SearchRequest)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    die_with(request.parent, signal.SIGTERM)
    # Candidates must not hold the lock of the run: it goes when this process does.
    os.set_inheritable(request.lock, False)
    os.register_at_fork(after_in_child=lambda: os.close(request.lock))
    reporter = Reporter(descriptor)
    reporter.answer(lambda: job_named(request.job)(request, reporter))  # imports torch
    # No interpreter teardown: a library that crashes at exit must not overwrite the answer.
    os._exit(0)


if __name__ == "__main__":
    main()
