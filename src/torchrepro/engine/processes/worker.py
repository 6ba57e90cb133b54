"""The child's side of `process.py`: run one job, report its phases and its result.

Started as `python -m torchrepro.engine.processes.worker REPORT_FD` with the request as JSON on stdin.
A job is named `package.module:function` and called as `function(payload, phase)`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from torchrepro.engine.processes.reports import Reporter


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    reporter = Reporter(descriptor)
    request = json.load(sys.stdin)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def work() -> Any:
        module, _, function = request["job"].partition(":")
        return getattr(importlib.import_module(module), function)(request["payload"], reporter.phase)

    reporter.answer(work)
    # No interpreter teardown: a library that crashes at exit must not overwrite the answer.
    os._exit(0)


if __name__ == "__main__":
    main()
