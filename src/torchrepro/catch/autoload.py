"""What torch calls at the end of `import torch`, in every process: turns the watch on if the environment
asks.

It is an entry point of the group `torch.backends`. That is how `torchrepro run` reaches the program and all
of its child processes without touching their command line, their `sys.path` or their `__main__`.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from torchrepro.catch.import_hook import when_imported
from torchrepro.catch.settings import SWITCH

GROUP = "torch.backends"


def start() -> None:
    """Never raises: torch would take that for a broken installation."""
    if os.environ.get(SWITCH, "0") in ("", "0"):
        return
    # Not before the program compiles something: the watch itself needs a second to import.
    when_imported("torch._dynamo.output_graph", _enable)


def _enable(module: ModuleType) -> None:
    try:
        from torchrepro.catch.enable import enable

        enable()
    except Exception as exc:
        print(f"torchrepro: the watch could not be turned on ({exc}); the program goes on", file=sys.stderr)
