"""Policy: Python functions that are not stepped: about the outside world, or as good as written in C."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from typing import Any

from torchrepro.frontend.breaks import BreakKind, BreakReason

_OUTSIDE = frozenset(
    [
        "logging",
        "warnings",
        "random",
        "os",
        "posixpath",
        "ntpath",
        "time",
        "datetime",
        "threading",
        "subprocess",
        "multiprocessing",
        "socket",
        "io",
        "tempfile",
        "shutil",
        "glob",
        "asyncio",
        "concurrent",
        "signal",
        "secrets",
        "uuid",
        "platform",
        "getpass",
        "queue",
        "selectors",
        "ssl",
        "urllib",
        "http",
        "traceback",
        "pdb",
        "sys",
        "gc",
        "atexit",
        "sched",
        "calendar",
        "select",
    ]
)
"""Modules of Python's library that are about more than their arguments."""

_NATIVE = frozenset(
    [
        "re",
        "sre_compile",
        "sre_parse",
        "enum",
        "abc",
        "typing",
        "inspect",
        "textwrap",
        "string",
        "numbers",
        "keyword",
        "token",
        "tokenize",
        "ast",
        "types",
        "weakref",
        "reprlib",
        "pprint",
        "json",
        "difflib",
        "fractions",
        "decimal",
        "struct",
        "codecs",
        "locale",
        "gettext",
        "_weakrefset",
    ]
)
"""Modules whose functions are taken as if they were written in C: pure, and long to step."""

AUTOCAST = "torch.amp.autocast_mode"
"""Its context managers change the state of the thread, which the recorder reads with each operation."""


_ENVIRONMENT = ("_Environ.", "_createenviron.", "getenv")
"""Of `os`: variables of the environment are read from a dict, and guarded there."""

_MAKERS = frozenset(
    function.__code__
    for function in (
        collections.namedtuple,
        dataclasses.dataclass,
        dataclasses.make_dataclass,
        dataclasses._process_class,  # type: ignore[attr-defined]
        functools.total_ordering,
    )
)
"""They write a class as text and run it."""


@functools.cache
def _module_policy(module: str) -> str:
    top = module.partition(".")[0]
    if top in _OUTSIDE:
        return "outside"
    if top in _NATIVE or module == AUTOCAST or module.startswith("torchrepro.frontend."):
        return "native"
    return ""


def why_not_stepped(function: types.FunctionType) -> BreakReason | None:
    module = function.__module__ or ""
    if _module_policy(module) == "outside" and not function.__qualname__.startswith(_ENVIRONMENT):
        return BreakReason(BreakKind.OUTSIDE, f"{module}.{function.__qualname__} is about the outside world")
    return None


def runs_natively(function: Any) -> bool:
    if isinstance(function, types.FunctionType) and function.__code__ in _MAKERS:
        return True
    return _module_policy(getattr(function, "__module__", None) or "") == "native"
