"""The worker's side of `spawning.py`: one job after another, each on a repro in a bundle.

Started as `python -m torchrepro.engine.processes.spawned_worker REPORT_FD REQUEST_FD MODULE...`. The modules
are imported first, so that no candidate's time goes into that; a request is a JSON object on a line.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from torchrepro.engine.processes.executor import job_named
from torchrepro.engine.processes.limits import limit_memory, limit_threads, no_core_dumps
from torchrepro.engine.processes.process_groups import own_signals
from torchrepro.engine.processes.reports import Reporter
from torchrepro.engine.processes.scratch import use_scratch
from torchrepro.torch_api import dynamo


def main() -> None:
    report_to, requests_from = int(sys.argv[1]), int(sys.argv[2])
    own_signals()
    no_core_dumps()
    for descriptor in (report_to, requests_from):
        os.set_inheritable(descriptor, False)
    for module in sys.argv[3:]:
        importlib.import_module(module)
    reporter = Reporter(report_to)
    # The end of the requests is the end of the process that sends them, or its wish.
    with os.fdopen(requests_from) as requests:
        for line in requests:
            request = json.loads(line)
            reporter.answer(lambda request=request: _work(request, reporter))  # type: ignore[misc]
            _forget()
    os._exit(0)


def _work(request: dict[str, Any], reporter: Reporter) -> Any:
    from torchrepro.bundle.load import load_bundle

    reporter.phase("load")
    use_scratch(request["scratch"])
    limit_threads(request["threads"])
    repro = load_bundle(Path(request["bundle"]), trusted=request["trusted"])
    reporter.phase("start")  # from here on it is as in a forked child
    limit_memory(request["memory_limit"])
    try:
        return job_named(request["job"])(repro, request["payload"], reporter.phase)
    finally:
        limit_memory(None)
        if _device_is_lost():
            reporter.send(worn_out=True)


def _device_is_lost() -> bool:
    """Whether a kernel has failed in such a way that everything on the device fails from now on."""
    import torch

    from torchrepro.torch_api.generators import accelerators, is_device_fault, is_initialised

    for kind in accelerators():
        if is_initialised(kind):
            try:
                torch.get_device_module(kind).synchronize()
            except RuntimeError as exc:
                if is_device_fault(exc):
                    return True
                raise
    return False


def _forget() -> None:
    """Let the next job find what a fresh process has, but for the imports."""
    import torch

    if "torch._dynamo" in sys.modules:
        dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
