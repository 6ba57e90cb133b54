"""One decision per function: what a trace does with a call of it.

In the graph, inlined, folded to a constant, run now by C, or a graph break with its reason. A function
without a rule is inlined where it is Python, and a graph break where it is C.
"""

from __future__ import annotations

import builtins
import collections
import copy
import dataclasses
import functools
import itertools
import math
import operator
import re
import sys
import types
import typing
from enum import Enum, auto
from typing import Any

import torch

from torchrepro.frontend.codegen.recipes import ITERATORS
from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.frontend.interpreter.generator import _drive
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace import torch_rules
from torchrepro.frontend.trace.classes import OWN_MODULES, is_trusted_file
from torchrepro.frontend.trace.fakes import is_fake
from torchrepro.torch_api.modules import original_of


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _of(owner: Any, names: str) -> list[Any]:
    """Return what a module or class has under these names, where this Python has it."""
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


class Action(Enum):
    """What is done with a call."""

    BREAK = auto()
    UNWRAP = auto()
    """Another callable is called in its place."""
    FOLD = auto()
    """Called now; the result is a constant."""
    GRAPH = auto()
    """Called as a whole, with fakes: the recorder records it or the functions it calls."""
    LIBRARY = auto()
    """Python of a library that runs now, as if it were C."""
    NATIVE = auto()
    """C that depends on its arguments alone: runs now, on values of the trace."""
    INLINE = auto()


def decide(function: Any) -> tuple[Action, Any]:
    """Return the action for a function, with the reason of a break or the callable to unwrap."""
    reason = why_break(function)
    if reason is not None:
        return Action.BREAK, reason
    original = original_of(function)
    if original is not None:
        return Action.UNWRAP, original
    if torch_rules.is_constant_fold(function):
        return Action.FOLD, None
    if torch_rules.is_leaf(function):
        return Action.GRAPH, None
    if _runs_natively(function):
        return Action.LIBRARY, None
    return (Action.INLINE if is_a(function, types.FunctionType) else Action.NATIVE), None


def why_break(function: Any) -> BreakReason | None:
    """Return why this call is a graph break; None where it can be traced, folded or called now."""
    reason = torch_rules.why_break(function)
    if reason is not None or torch_rules.is_constant_fold(function) or is_a(function, type):
        return reason
    if is_a(function, types.FunctionType):
        module = function.__module__ or ""
        if _policy_of(module) is Action.BREAK and not function.__qualname__.startswith(_ENVIRONMENT):
            told = f"{module}.{function.__qualname__} is about the outside world"
            return BreakReason(BreakKind.OUTSIDE, told, frames=module in ("traceback", "pdb"))
        if function in _UNTRACED:
            return BreakReason(BreakKind.UNSUPPORTED, f"{function.__qualname__}: {_UNTRACED[function]}")
        return None
    return why_not_native(function)


# Python functions

_OUTSIDE = _words(
    """
    logging warnings random os posixpath ntpath time datetime threading subprocess multiprocessing socket io
    tempfile shutil glob asyncio concurrent signal secrets uuid platform getpass queue selectors ssl urllib
    http traceback pdb sys gc atexit sched calendar select locale gettext weakref _weakrefset
    """
)
"""Modules of Python's library whose functions depend on more than their arguments."""

_ENVIRONMENT = ("_Environ.", "_createenviron.", "getenv")
"""Of `os`: variables of the environment are read from a dict, and guarded there."""

_AS_C = _words(
    """
    re sre_compile sre_parse enum abc typing inspect textwrap string numbers keyword token tokenize ast types
    reprlib pprint json difflib fractions struct
    """
)
"""Modules whose functions are treated as if written in C: pure, and slow to trace."""

AUTOCAST = "torch.amp.autocast_mode"
"""Its context managers change the state of the thread, which the recorder reads with each operation."""

_UNTRACED: dict[Any, str] = {copy.deepcopy: "a copy knows objects by their addresses"}

_MAKERS = frozenset(
    function.__code__
    for function in (
        *(collections.namedtuple, functools.total_ordering),
        *_of(dataclasses, "dataclass make_dataclass _process_class"),
    )
)
"""They generate a class as text and execute it."""

_CALL_OF_GENERIC = typing._BaseGenericAlias.__call__.__code__  # type: ignore[attr-defined]
"""Of `typing`, but it calls the class that it is about."""


@functools.cache
def _policy_of(module: str) -> Action:
    top = module.partition(".")[0]
    if top in _OUTSIDE:
        return Action.BREAK
    library = top in _AS_C or module == AUTOCAST or module.startswith(OWN_MODULES)
    return Action.LIBRARY if library else Action.INLINE


def makes_classes(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__code__ in _MAKERS


def _runs_natively(function: Any) -> bool:
    if makes_classes(function):
        return True
    module = getattr(function, "__module__", None) or ""
    if _policy_of(module) is not Action.LIBRARY:
        return False
    # A wrapper, or a function that a library made for the user, may have the library's `__module__`.
    if isinstance(function, types.FunctionType):
        code, ours = function.__code__, module.startswith(OWN_MODULES)
        return ours or (code is not _CALL_OF_GENERIC and is_trusted_file(code.co_filename))
    known = sys.modules.get(module)
    return not isinstance(function, type) or getattr(known, function.__qualname__, None) is function


# Functions in C. A call of one that is not listed is a graph break.

_PURE_MODULES = _words(
    """
    math cmath operator _operator itertools _functools functools _collections collections _bisect _heapq
    _string string unicodedata _struct _json _sre re _abc abc _typing typing _statistics binascii colorsys
    numbers types copyreg
    """
)
_QUESTIONS = frozenset(_of(sys, "exc_info exception intern getdefaultencoding"))
_QUESTION_OF_TORCH = ("get_", "is_", "has_", "len_")
_LOOKERS = frozenset({"_getframe", "_getframemodulename", "_current_frames"})
_OUTSIDE_IN_C = frozenset({"time", "_random", "random", "posix", "_io", "io", "_thread", "sys"})
_MUST_HAPPEN = frozenset({"print", "input", "open", "breakpoint", "exit", "quit"})
_UNGUARDED = _words("exec eval compile __import__ globals locals vars dir id memoryview")

_DATA = _of(builtins, "str bytes bytearray int float complex list tuple dict set frozenset range slice")
_OWNERS: tuple[Any, ...] = (
    *(*_DATA, type(None), BaseException, functools.partial, collections.deque, re.Pattern, re.Match),
    *_of(builtins, "property staticmethod classmethod"),
    *_of(types, "FunctionType MethodType GenericAlias MappingProxyType CodeType"),
    *_of(torch, "Size dtype device finfo iinfo"),
    *map(type, ({}.keys(), {}.values(), {}.items())),
)
"""Types in C whose methods are as pure as they are."""

_ITERTOOLS = tuple(kind for kind in vars(itertools).values() if is_a(kind, type))
_ITERATORS = (*ITERATORS, *_ITERTOOLS)

FUNCTION_FIRST: frozenset[Any] = frozenset(
    {map, filter, functools.reduce, *_of(itertools, "starmap dropwhile takewhile filterfalse")}
)
"""Natives whose first argument is a function."""

COMPARING_RESULTS = frozenset({iter, itertools.groupby})
"""Natives that compare what a function returns: `iter` with a sentinel, `groupby` with a key."""

HIGHER_ORDER = frozenset({*FUNCTION_FIRST, *COMPARING_RESULTS, itertools.accumulate})
"""Natives that call functions which they are given: those are inlined instead."""

BY_REFERENCE = _words("append insert appendleft extend setdefault __setitem__ add fromkeys")
"""Methods that only keep their arguments."""

_DICTS: tuple[Any, ...] = (dict, collections.OrderedDict, collections.defaultdict)
_MADE_DICTS = (*_DICTS, *(kind.__init__ for kind in _DICTS))
_UPDATES = (*_of(dict, "update __ior__"), *_of(collections.OrderedDict, "update __ior__"))
_SET_METHODS = """
    union update intersection intersection_update difference difference_update symmetric_difference
    symmetric_difference_update issubset issuperset isdisjoint
"""
_OF_SETS = (*_of(set, _SET_METHODS), *_of(frozenset, _SET_METHODS))

COLLECTED: frozenset[Any] = frozenset(
    {
        *(sum, *_of(math, "prod fsum dist sumprod"), *_of(operator, "countOf indexOf")),
        *(set, frozenset, set.__init__, frozenset.__new__, *_MADE_DICTS),
        *(kind.fromkeys for kind in _DICTS),
    }
)
"""Functions that call methods of the items, and return nothing before they have all of them."""

HASHING: frozenset[Any] = frozenset(
    {*_OF_SETS, *_UPDATES, type({}.keys()).isdisjoint, type({}.items()).isdisjoint}
)
"""Methods that hash the items one by one, while the code that yields them may read the owner."""

USING_ITEMS = frozenset({iter, *_of(itertools, "groupby accumulate compress")})
"""Iterators that call methods of their items, or of a sentinel, in `__next__`."""

ITERATING: dict[Any, slice] = {
    function: places
    for places, functions in (
        (slice(0, 1), (*filter(callable, vars(itertools).values()), itertools.chain.from_iterable)),
        (slice(0, 1), (tuple, list, collections.deque, torch.Size, enumerate, *COLLECTED, *HASHING)),
        (slice(0, 1), (*_of(list, "__init__ extend __iadd__"), str.join, bytes.join)),
        (
            slice(0, 1),
            (*_of(collections.deque, "__init__ extend extendleft"), *_of(bytearray, "join extend")),
        ),
        (slice(1, 2), (tuple.__new__, frozenset.__new__, filter, functools.reduce)),
        (slice(1, 2), (collections.defaultdict, collections.defaultdict.__init__)),
        (slice(1, 2), _of(itertools, "takewhile dropwhile filterfalse starmap")),
        (slice(1, 2), _of(collections, "_count_elements")),
        (slice(1, None), (map,)),
        (slice(None), (zip, *_of(math, "dist sumprod"), *_OF_SETS)),
        (slice(None), _of(itertools, "chain zip_longest product compress")),
    )
    for function in functions
    if function not in (itertools.count, itertools.repeat)
}
"""Functions in C, and which of their arguments they iterate over; others take an object as it is."""

MAPPING: frozenset[Any] = frozenset({*_MADE_DICTS, *_UPDATES})
"""Functions that look for `keys` first."""

NATIVE_CLASSES: frozenset[type] = frozenset(
    {
        *(*_DATA, *_DICTS, type(None), collections.deque, functools.partial, *_ITERTOOLS),
        *_of(builtins, "bool zip enumerate map filter reversed object property staticmethod classmethod"),
        *_of(torch, "Size device finfo iinfo"),
        *_of(types, "MethodType SimpleNamespace MappingProxyType GenericAlias CellType"),
    }
)
"""Classes in C that are made by calling them."""


def is_native_iterator(value: Any) -> bool:
    return is_a(value, _ITERATORS)


def looks_at_frames(function: Any) -> bool:
    return function.__name__ in _LOOKERS and function.__module__ == "sys"


def asks_torch(function: Any) -> bool:
    """Return whether it is a query in C about the state of torch, by its name."""
    module = str(getattr(function, "__module__", None) or "")
    named = getattr(function, "__name__", "").lstrip("_").startswith(_QUESTION_OF_TORCH)
    return named and module.partition(".")[0] == "torch" and not torch_rules.is_leaf(function)


def why_not_native(function: Any) -> BreakReason | None:
    """Return why a function in C cannot be called while tracing; None where it can."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        holder = getattr(function, "__self__", None)
        if isinstance(holder, types.GeneratorType) and holder.gi_code is _drive.__code__:
            return None  # runs a generator of the trace
        if is_fake(holder):
            return None  # the recorder records it
        if holder is not None and not is_a(holder, types.ModuleType):
            owner = holder if is_a(holder, type) else type(holder)
    if owner is object and name in ("__reduce_ex__", "__reduce__", "__getstate__"):
        return BreakReason(BreakKind.UNSUPPORTED, f"object.{name} reads an object by C, as a copy does")
    if owner is not None:
        if issubclass(owner, (*_OWNERS, *_ITERATORS)) or owner is type or issubclass(torch.Tensor, owner):
            return None
        return _in_c(owner.__module__, f"{owner.__module__}.{owner.__qualname__}.{name}")
    module = getattr(function, "__module__", None) or ""
    outer = getattr(function, "__qualname__", "").partition(".")[0]
    if function in _QUESTIONS or is_a(getattr(builtins, outer, None), type):
        return None  # a query about the interpreter, or a static method of a builtin type
    if module == "builtins":
        if name in _MUST_HAPPEN:
            told = f"{name}() must happen on every call"
            return BreakReason(BreakKind.OUTSIDE, told, frames=name == "breakpoint")
        if name in _UNGUARDED:
            return BreakReason(BreakKind.UNSUPPORTED, f"{name}() depends on what cannot be guarded")
        return None
    if asks_torch(function) or module in _PURE_MODULES or torch_rules.is_leaf(function):
        return None
    if looks_at_frames(function):
        return BreakReason(BreakKind.OUTSIDE, f"{name}() looks at the frames of the program", frames=True)
    return _in_c(module, f"{module}.{name}")


def _in_c(module: str, name: str) -> BreakReason:
    if module in _OUTSIDE_IN_C:
        return BreakReason(BreakKind.OUTSIDE, f"{name} is about the outside world")
    return BreakReason(BreakKind.OPAQUE, f"{name} is written in C and may do anything")
