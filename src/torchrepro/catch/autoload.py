"""The entry point that every `import torch` calls: turns the watch on if the environment says so.

It is in the group `torch.backends`. That is how `torchrepro run` reaches the program and all of its child
processes without changing their command line, their `sys.path` or their `__main__`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType

from torchrepro.torch_api.names import OUTPUT_GRAPH

PREFIX = "TORCHREPRO_"
SWITCH = f"{PREFIX}WATCH"
"""Set to 1, it turns the watch on in every process that imports torch."""
GROUP = "torch.backends"
Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call `action` with the module: now if it is imported already, else after its import."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        action(module)
        return
    _waiting.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Delegates to the other finders, and runs the waiting actions after their loader."""

    def __init__(self) -> None:
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                while fullname in _waiting:  # an action may register another
                    for action in _waiting.pop(fullname):
                        action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_waiting: dict[str, list[Action]] = {}
_finder = _Finder()


def start() -> None:
    """Turn the watch on if `SWITCH` is set. Never raises: torch would report a broken installation."""
    if os.environ.get(SWITCH, "0") in ("", "0"):
        return
    # Deferred until the program compiles something: importing the watch takes a second.
    when_imported(OUTPUT_GRAPH, _enable)


def _enable(module: ModuleType) -> None:
    try:
        from torchrepro.catch.torch_hooks import enable

        enable()
    except Exception as exc:
        print(f"torchrepro: the watch could not be turned on ({exc}); the program continues", file=sys.stderr)
