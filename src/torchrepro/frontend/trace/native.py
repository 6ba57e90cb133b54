"""Native functions: what in C may be called while tracing, because it depends on its arguments alone.

A function not listed ends the region: Python calls it, every time. What is listed runs once, on values of the
trace.
"""

from __future__ import annotations

import builtins
import collections
import functools
import itertools
import math
import operator
import re
import sys
import types
from typing import Any

import torch

from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.frontend.interpreter.generator import _drive
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace import leaves
from torchrepro.frontend.trace.fakes import is_fake
from torchrepro.frontend.trace.stepped import SteppedSequence

_PURE_MODULES = frozenset(
    [
        "math",
        "cmath",
        "operator",
        "_operator",
        "itertools",
        "_functools",
        "functools",
        "_collections",
        "collections",
        "_bisect",
        "_heapq",
        "_string",
        "string",
        "unicodedata",
        "_struct",
        "_json",
        "_sre",
        "re",
        "_abc",
        "abc",
        "_typing",
        "typing",
        "_statistics",
        "binascii",
        "colorsys",
        "numbers",
        "types",
        "copyreg",
    ]
)

_QUESTIONS = frozenset(
    {sys.exc_info, sys.exception, sys.intern, sys.getrecursionlimit, sys.getdefaultencoding}
)

_QUESTION_OF_TORCH = ("get_", "is_", "has_", "len_")
_LOOKERS = frozenset({"_getframe", "_getframemodulename", "_current_frames"})
_OUTSIDE_MODULES = frozenset({"time", "_random", "random", "posix", "_io", "io", "_thread", "sys"})
_OUTSIDE = frozenset({"print", "input", "open", "breakpoint", "exit", "quit"})
_UNFOLLOWED = frozenset(
    {"exec", "eval", "compile", "__import__", "globals", "locals", "dir", "id", "memoryview"}
)

_OWNERS: tuple[Any, ...] = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    list,
    tuple,
    dict,
    set,
    frozenset,
    range,
    slice,
    type(None),
    collections.deque,
    re.Pattern,
    re.Match,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.finfo,
    torch.iinfo,
    property,
    staticmethod,
    classmethod,
    BaseException,
    types.FunctionType,
    types.MethodType,
    types.GenericAlias,
    types.MappingProxyType,
    types.CodeType,
    functools.partial,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
"""Types in C whose methods are as pure as they are."""

_SOME_ITERATORS: tuple[Any, ...] = (
    iter([]),
    iter(()),
    iter({}),
    iter({}.values()),
    iter({}.items()),
    iter(set()),
    iter(""),
    iter(b""),
    iter(range(0)),
    iter(range(1 << 70)),
    reversed([]),
    reversed({}),
    reversed({}.values()),
    reversed({}.items()),
    iter(collections.deque()),
    reversed(collections.deque()),
    iter(collections.OrderedDict()),
    zip(),
    enumerate(()),
    map(str, ()),
    filter(None, ()),
    reversed(()),
    iter(int, 0),
    iter(SteppedSequence.__new__(SteppedSequence)),
)
_ITERATORS = tuple(map(type, _SOME_ITERATORS)) + tuple(
    kind for kind in vars(itertools).values() if is_a(kind, type)
)

HIGHER_ORDER: frozenset[Any] = frozenset(
    {
        map,
        filter,
        sorted,
        min,
        max,
        iter,
        functools.reduce,
        re.Pattern.sub,
        re.Pattern.subn,
        itertools.accumulate,
        itertools.dropwhile,
        itertools.takewhile,
        itertools.filterfalse,
        itertools.groupby,
        itertools.starmap,
    }
)
"""Natives that call functions which they are given: those are stepped instead."""

FUNCTION_FIRST: frozenset[Any] = frozenset({map, filter, functools.reduce, itertools.starmap})
"""Those of which the first argument is the function."""

BY_REFERENCE = frozenset(
    {"append", "insert", "appendleft", "extend", "setdefault", "__setitem__", "add", "fromkeys"}
)
"""Methods that only keep their arguments."""

_DICTS: tuple[Any, ...] = (dict, collections.OrderedDict, collections.defaultdict)
_UPDATES: tuple[Any, ...] = (
    dict.update,
    dict.__ior__,
    collections.OrderedDict.update,
    collections.OrderedDict.__ior__,
)
_SETS: tuple[Any, ...] = (set, frozenset)
_SET_METHODS = """
    union update intersection intersection_update difference difference_update symmetric_difference
    symmetric_difference_update issubset issuperset isdisjoint
"""


def _iterating() -> dict[Any, slice]:
    first, second, each = slice(0, 1), slice(1, 2), slice(None)
    kinds = (list, set, frozenset, bytearray, dict, collections.deque, collections.OrderedDict)
    found: dict[Any, slice] = {
        **dict.fromkeys((tuple, bytes, torch.Size, enumerate, sum, math.prod, math.fsum), first),
        **dict.fromkeys((*kinds, *(kind.__init__ for kind in kinds)), first),
        **dict.fromkeys((str.join, bytes.join, bytearray.join, bytearray.extend), first),
        **dict.fromkeys((list.extend, list.__iadd__, collections.deque.extend), first),
        **dict.fromkeys((collections.deque.extendleft, *_UPDATES), first),
        **dict.fromkeys((operator.countOf, operator.indexOf, itertools.chain.from_iterable), first),
        **dict.fromkeys((kind.fromkeys for kind in _DICTS), first),
        **dict.fromkeys((zip, math.dist, getattr(math, "sumprod", math.dist)), each),
        **dict.fromkeys((tuple.__new__, frozenset.__new__, filter, functools.reduce), second),
        **dict.fromkeys((collections.defaultdict, collections.defaultdict.__init__), second),
        getattr(collections, "_count_elements", filter): second,
        map: slice(1, None),
        type({}.keys()).isdisjoint: first,
        type({}.items()).isdisjoint: first,
    }
    for name, function in vars(itertools).items():
        if callable(function) and name not in ("count", "repeat"):
            found[function] = first
    for function in (itertools.chain, itertools.zip_longest, itertools.product, itertools.compress):
        found[function] = each
    for function in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.starmap):
        found[function] = second
    for kind in _SETS:
        found |= {getattr(kind, name): each for name in _SET_METHODS.split() if hasattr(kind, name)}
    return found


ITERATING = _iterating()
"""Functions in C, and which of their arguments they iterate over; others take an object as it is."""

MAPPING: frozenset[Any] = frozenset({*_DICTS, *(kind.__init__ for kind in _DICTS), *_UPDATES})
"""Those that ask for `keys` first."""

AS_BYTES: frozenset[Any] = frozenset({bytes, bytearray, bytearray.__init__})
"""Those that ask first which bytes an object is, or how many."""

NATIVE_CLASSES: frozenset[type] = frozenset(
    {
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        slice,
        zip,
        enumerate,
        map,
        filter,
        reversed,
        object,
        property,
        staticmethod,
        classmethod,
        type(None),
        collections.deque,
        collections.OrderedDict,
        collections.defaultdict,
        functools.partial,
        types.MethodType,
        types.SimpleNamespace,
        types.MappingProxyType,
        types.GenericAlias,
        types.CellType,
        torch.Size,
        torch.device,
        torch.finfo,
        torch.iinfo,
        *(kind for kind in vars(itertools).values() if is_a(kind, type)),
    }
)
"""Classes in C that are made by calling them."""


def is_native_iterator(value: Any) -> bool:
    return is_a(value, _ITERATORS)


def looks_at_frames(function: Any) -> bool:
    return function.__name__ in _LOOKERS and function.__module__ == "sys"


def why_not(function: Any) -> BreakReason | None:
    """Why a function in C cannot be called while tracing; None where it can."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        holder = getattr(function, "__self__", None)
        if isinstance(holder, types.GeneratorType) and holder.gi_code is _drive.__code__:
            return None  # steps a generator of the trace
        if is_fake(holder):
            return None  # the recorder sees it
        if holder is not None and not is_a(holder, types.ModuleType):
            owner = holder if is_a(holder, type) else type(holder)
    if owner is not None:
        if issubclass(owner, _OWNERS) or owner in (object, type) or issubclass(owner, _ITERATORS):
            return None
        if issubclass(torch.Tensor, owner):
            return None
        return _in_c(owner.__module__, f"{owner.__module__}.{owner.__qualname__}.{name}")
    module = getattr(function, "__module__", None) or ""
    if function in _QUESTIONS or is_a(
        getattr(builtins, getattr(function, "__qualname__", "").partition(".")[0], None), type
    ):
        return None  # a question about the interpreter, or a static method of a builtin type
    if module == "builtins":
        if name in _OUTSIDE:
            told = f"{name}() must happen on every call"
            return BreakReason(BreakKind.OUTSIDE, told, frames=name == "breakpoint")
        if name in _UNFOLLOWED:
            return BreakReason(BreakKind.UNSUPPORTED, f"{name}() depends on what cannot be guarded")
        return None
    if module in _PURE_MODULES or leaves.is_leaf(function):
        return None
    if module.partition(".")[0] == "torch" and name.lstrip("_").startswith(_QUESTION_OF_TORCH):
        return None
    if looks_at_frames(function):
        return BreakReason(BreakKind.OUTSIDE, f"{name}() looks at the frames of the program", frames=True)
    return _in_c(module, f"{module}.{name}")


def _in_c(module: str, name: str) -> BreakReason:
    if module in _OUTSIDE_MODULES:
        return BreakReason(BreakKind.OUTSIDE, f"{name} is about the outside world")
    return BreakReason(BreakKind.OPAQUE, f"{name} is written in C and may do anything")
