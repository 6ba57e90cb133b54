"""The child's side of `process.py`: run one job, report its phases and its result.

Started as `python -m torchrepro.isolate.worker REPORT_FD` with the request as JSON on standard input. A job
is named `package.module:function` and called as `function(payload, phase)`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from torchrepro.errors import TorchReproError


class Reporter:
    """Writes one JSON object a line to the parent, each in a single write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]

    def phase(self, name: str) -> None:
        self.send(phase=name)


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    reporter = Reporter(descriptor)
    request = json.load(sys.stdin)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        module, _, function = request["job"].partition(":")
        job = getattr(importlib.import_module(module), function)
        reporter.send(result=job(request["payload"], reporter.phase))
    except TorchReproError as exc:
        reporter.send(error=_describe(exc, kind="user", fact=exc.fact, next_step=exc.next_step))
    except BaseException as exc:
        # Whatever it is, the parent must hear of it: a silent exit would look like a verdict.
        reporter.send(error=_describe(exc, kind="harness", fact=repr(exc), next_step=""))
    sys.stdout.flush()
    sys.stderr.flush()
    # No interpreter teardown: a library that crashes at exit must not overwrite the answer.
    os._exit(0)


def _describe(exc: BaseException, **fields: str) -> dict[str, str]:
    return {**fields, "traceback": "".join(traceback.format_exception(exc))}


if __name__ == "__main__":
    main()
