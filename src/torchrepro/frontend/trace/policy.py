"""Policy: Python functions that are not stepped: about the outside world, or as good as written in C."""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
import typing
from typing import Any

from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.frontend.trace.classes import OWN_MODULES, is_trusted_file

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
        "locale",
        "gettext",
    ]
)
"""Modules of Python's library that are about more than their arguments."""

_ABOUT_FRAMES = ("traceback", "pdb")

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
        "struct",
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


_CALL_OF_GENERIC = typing._BaseGenericAlias.__call__.__code__  # type: ignore[attr-defined]
"""Of `typing`, but it calls the class that it is about."""


@functools.cache
def _module_policy(module: str) -> str:
    top = module.partition(".")[0]
    if top in _OUTSIDE:
        return "outside"
    if top in _NATIVE or module == AUTOCAST or module.startswith(OWN_MODULES):
        return "native"
    return ""


def why_not_stepped(function: types.FunctionType) -> BreakReason | None:
    module = function.__module__ or ""
    if _module_policy(module) == "outside" and not function.__qualname__.startswith(_ENVIRONMENT):
        told = f"{module}.{function.__qualname__} is about the outside world"
        return BreakReason(BreakKind.OUTSIDE, told, frames=module in _ABOUT_FRAMES)
    return None


def makes_classes(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__code__ in _MAKERS


def runs_natively(function: Any) -> bool:
    if makes_classes(function):
        return True
    module = getattr(function, "__module__", None) or ""
    if _module_policy(module) != "native":
        return False
    # A wrapper, or what a library has made for the user, may say that it is of the library.
    if isinstance(function, types.FunctionType):
        code, ours = function.__code__, module.startswith(OWN_MODULES)
        return ours or (code is not _CALL_OF_GENERIC and is_trusted_file(code.co_filename))
    known = sys.modules.get(module)
    return not isinstance(function, type) or getattr(known, function.__qualname__, None) is function
