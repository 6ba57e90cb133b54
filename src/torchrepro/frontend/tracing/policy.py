"""Policy: which Python functions are not stepped, because they are about the outside world or as good as constants."""

from __future__ import annotations

import functools
import types
from typing import Any

from torchrepro.frontend.breaks import BreakKind, BreakReason

_OUTSIDE = frozenset(
    """logging warnings random os posixpath ntpath time datetime threading subprocess multiprocessing socket io
    tempfile shutil glob asyncio concurrent signal secrets uuid platform getpass queue selectors ssl urllib http
    traceback pdb sys gc atexit sched calendar select""".split()
)
"""Modules of Python's library that are about more than their arguments."""

_NATIVE = frozenset(
    """re sre_compile sre_parse enum abc typing inspect textwrap string numbers keyword token tokenize ast types
    weakref reprlib pprint json difflib fractions decimal struct codecs locale gettext _weakrefset""".split()
)
"""Modules whose functions are taken as if they were written in C: pure, and long to step."""

_NATIVE_OF_TORCH = frozenset({"torch.autograd.grad_mode", "torch.amp.autocast_mode"})
"""Context managers over the state of a thread: the recorder reads that state with each operation."""


@functools.cache
def _module_policy(module: str) -> str:
    top = module.partition(".")[0]
    if top in _OUTSIDE:
        return "outside"
    if top in _NATIVE or module in _NATIVE_OF_TORCH or module == "torch.jit._script":
        return "native"
    return ""


def why_not_stepped(function: types.FunctionType) -> BreakReason | None:
    module = function.__module__ or ""
    if _module_policy(module) == "outside":
        return BreakReason(BreakKind.OUTSIDE, f"{module}.{function.__qualname__} is about the outside world")
    return None


def runs_natively(function: Any) -> bool:
    return _module_policy(getattr(function, "__module__", None) or "") == "native"
