"""Append one byte to the file $COMPILES_COUNTED for every compilation that reaches inductor, in any process.

And to the file $COMPILES_TIMED the seconds that each took.

The directory of this file goes to the front of PYTHONPATH, so that children are counted too, whoever starts
them. `_compile_fx_inner` is the one function that every way into inductor looks up when it is called:
`compile_fx_inner` itself is a default argument of `compile_fx`, so a wrapper around that one counts torch's
own minifier (which calls it by name) and misses `torch.compile`. Checked on torch 2.11 to 2.15.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from typing import Any

_COUNTED = "torch._inductor.compile_fx"


def _append(variable: str, text: str) -> None:
    if os.environ.get(variable):
        with open(os.environ[variable], "a") as file:
            file.write(text)


def _load_the_next() -> None:
    """Run the `sitecustomize` that this one hides: the injected bugs come by way of theirs."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _count(module: Any) -> None:
    compile_graph = module._compile_fx_inner

    @functools.wraps(compile_graph)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _append("COMPILES_COUNTED", ".")
        began = time.perf_counter()
        try:
            return compile_graph(*args, **kwargs)
        finally:
            _append("COMPILES_TIMED", f"{time.perf_counter() - began:.3f}\n")

    module._compile_fx_inner = counted


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find the module, and counts from the moment it is loaded."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if self._busy or name != _COUNTED:
            return None
        self._busy = True
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            self._busy = False
        load = spec.loader.exec_module

        def load_and_count(module: Any) -> None:
            load(module)
            _count(module)

        spec.loader.exec_module = load_and_count
        return spec


_load_the_next()
if os.environ.get("COMPILES_COUNTED") or os.environ.get("COMPILES_TIMED"):
    sys.meta_path.insert(0, _Finder())
