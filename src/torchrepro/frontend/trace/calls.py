"""Calls in traced code: inlined, recorded as one operation, run now by C, or a graph break."""

from __future__ import annotations

import datetime
import enum
import functools
import types
from collections.abc import Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as nn_module

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import GLOBAL_HOOKS, HOOKS, Answers, NoHooks
from torchrepro.frontend.interpreter.callers import super_of
from torchrepro.frontend.interpreter.frame import Frame, bind_arguments
from torchrepro.frontend.interpreter.operations import Calls
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, Item
from torchrepro.frontend.trace import torch_rules
from torchrepro.frontend.trace.classes import (
    IN_C,
    MISSING,
    is_python_class,
    is_single,
    is_trusted_class,
    is_trusted_space,
)
from torchrepro.frontend.trace.fakes import outside_of_trace
from torchrepro.frontend.trace.foreign import RunsForeignCode, SteppedCallable, no_foreign_code
from torchrepro.frontend.trace.handlers import GETTERS, HANDLERS, call_getter
from torchrepro.frontend.trace.rules import AUTOCAST, NATIVE_CLASSES, Action, decide
from torchrepro.frontend.trace.values import Pending
from torchrepro.torch_api.tensors import module_call_impl

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_MODULE_CALL = torch.nn.Module.__call__
_CACHED = type(functools.lru_cache(lambda: None))
ORIGINAL = "_torchrepro_original"
"""Where a wrapper of ours keeps what it wraps."""

_MAX_DEPTH = 180
_PURE_IN_C = (*GETTERS, datetime.date, datetime.time, datetime.timedelta)
_ALLOCATORS = (object, tuple, list, dict, set, frozenset, int, float, str, bytes, BaseException)


class TracedCalls(Calls):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.tracer, self.values = tracer, tracer.values
        self.depth = 0
        """How many functions are being inlined."""

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind: Any = type(function)
        if kind is types.FunctionType:
            return self._call_python(function, args, kwargs)
        if kind is types.MethodType:
            return self.call(function.__func__, (function.__self__, *args), kwargs)
        if is_a(function, type):
            return self._call_class(function, args, kwargs)
        if is_a(function, IN_C):
            return self.tracer.natives.call(function, args, kwargs)
        if kind is functools.partial:
            return self.call(function.func, (*function.args, *args), {**function.keywords, **kwargs})
        if kind in (_CACHED, *GETTERS):
            self.values.pin(function)
        if kind is _CACHED:
            return self._call_cached(function, args, kwargs)
        if kind is staticmethod or kind is SteppedCallable:
            inner = function.__func__ if kind is staticmethod else function.function
            return self.call(inner, args, kwargs)
        if kind in GETTERS:
            return call_getter(self.tracer, function, args, kwargs)
        if is_python_class(kind) and not is_trusted_class(kind) and not is_a(function, torch.nn.Module):
            return self._call_object(function, args, kwargs)  # unasked: it may have a `__getattribute__`
        original = torch_rules.original_of(function) or getattr(function, ORIGINAL, None)
        if original is not None:
            self.values.pin(function)
            return self.call(original, args, kwargs)
        if is_a(function, torch.nn.Module):
            return self._call_module(function, args, kwargs)
        if torch_rules.is_leaf(function):
            return self.tracer.natives.call_leaf(function, args, kwargs)
        return self._call_object(function, args, kwargs)

    def special(self, value: Any, name: str, *args: Any) -> Any:
        """Call a special method that the class defines in Python; return `MISSING` where it does not."""
        found = self.tracer.classes.python_method(value, name)
        if found is None:
            return MISSING
        return self.call(self.tracer.attributes.bind(found, value, type(value), name), args, {})

    # Python

    def _call_python(
        self, function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        action, detail = decide(function)
        if action is Action.BREAK:
            raise Break.of(detail)
        if action is Action.UNWRAP:
            return self.call(detail, args, kwargs)
        handler = HANDLERS.get(function)
        if handler is not None:
            result = handler(self.tracer, args, kwargs)
            if result is not NotImplemented:
                return result
        if action is Action.FOLD:
            return self.tracer.natives.answer(function, args, kwargs)
        if action is Action.GRAPH:
            return self.tracer.natives.call_leaf(function, args, kwargs)
        if action is Action.LIBRARY:
            if function.__module__ == AUTOCAST and args and not self.values.is_fresh(args[0]):
                raise Break(BreakKind.UNSUPPORTED, "mixed precision that was begun outside of the trace")
            return self.tracer.natives.call_library(function, args, kwargs)
        return self.inline(function, args, kwargs)

    def inline(self, function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function by tracing it; its defaults and outer variables come from where it does."""
        if function.__code__.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
            raise Break(BreakKind.UNSUPPORTED, f"{function.__qualname__} is asynchronous")
        try:
            bound = self._bind_arguments(function, args, kwargs)
        except TypeError as error:
            code = function.__code__
            error.add_note(f"{function.__qualname__} is defined at {code.co_filename}:{code.co_firstlineno}")
            raise
        frame = Frame(function, bound)
        self._know_cells(function)
        self.tracer.note_inlined(function)
        if self.depth >= _MAX_DEPTH:
            raise Break(BreakKind.UNSUPPORTED, f"{function.__qualname__} is called {self.depth} calls deep")
        self.depth += 1
        try:
            return self.tracer.enter(frame)
        finally:
            self.depth -= 1

    def _bind_arguments(
        self, function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        if self.values.is_fresh(function) or not (function.__defaults__ or function.__kwdefaults__):
            return bind_arguments(function, args, kwargs)
        if is_trusted_space(function.__globals__) and all(map(is_constant, function.__defaults__ or ())):
            return bind_arguments(function, args, kwargs)
        source = self.values.home_of(function)
        defaults, kwdefaults = Attribute(source, "__defaults__"), Attribute(source, "__kwdefaults__")
        bound = bind_arguments(
            function,
            args,
            kwargs,
            defaults=tuple(
                Pending(value, Item.at(defaults, index))
                for index, value in enumerate(function.__defaults__ or ())
            ),
            kwdefaults={
                name: Pending(value, Item.at(kwdefaults, name))
                for name, value in (function.__kwdefaults__ or {}).items()
            },
        )
        return {name: self.tracer.settled(value) for name, value in bound.items()}

    def _know_cells(self, function: types.FunctionType) -> None:
        """Register where the outer variables of a function are found that existed before."""
        if not function.__closure__ or self.values.is_fresh(function):
            return
        home = Attribute(self.values.home_of(function), "__closure__")
        for index, cell in enumerate(function.__closure__):
            if self.values.source_of(cell) is None and not self.values.is_fresh(cell):
                self.tracer.world.adopt_cell(cell, Item.at(home, index))

    def _call_cached(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a memoised function gave before for these constants; Python runs it the first time."""
        name = function.__name__
        if not all(map(is_constant, (*args, *kwargs.values()))):
            raise Break(BreakKind.OPAQUE, f"{name} keeps its results, and is given an object")
        try:
            with no_foreign_code(name), outside_of_trace():
                result = function(*args, **kwargs)
        except RunsForeignCode:
            raise Break(BreakKind.OUTSIDE, f"{name} keeps its results, and has none for these yet") from None
        if not (is_constant(result) or is_single(result)):
            raise Break(BreakKind.OPAQUE, f"{name} keeps its results, and gave an object")
        # Asked again on each call: it may have been told to forget.
        asked = self.values.kept.hold(function)
        self.values.guards.add(Answers(asked, tuple(args), result, tuple(kwargs.items())))
        return result

    # Objects and modules

    def _call_module(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if is_a(module, torch.jit.ScriptModule):
            raise Break(BreakKind.OPAQUE, f"{type(module).__name__} is a script of torch.jit")
        if self.tracer.classes.lookup(type(module), "__call__") is not _MODULE_CALL:
            return self._call_object(module, args, kwargs)
        with self.tracer.inside_module(module):
            if has_hooks(module):
                return self.call(module_call_impl, (module, *args), kwargs)
            if not self.values.is_fresh(module):
                self.values.guards.add(NoHooks(self.values.home_of(module)))
            self.values.guards.add(NoHooks(self.values.kept.hold(nn_module, "torch.nn"), GLOBAL_HOOKS))
            return self.call(self.tracer.attributes.load(module, "forward"), args, kwargs)

    def _call_object(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.values.require_known(function)
        kind = type(function)
        found = self.tracer.classes.lookup(kind, "__call__")
        if found is MISSING:
            raise TypeError(f"'{kind.__name__}' object is not callable")
        if not is_python_class(kind) or is_a(found, IN_C):
            raise Break(BreakKind.OPAQUE, f"a call of a {kind.__qualname__}")
        return self.call(self.tracer.attributes.bind(found, function, kind, "__call__"), args, kwargs)

    # Classes

    def _call_class(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        natives, lookup = self.tracer.natives, self.tracer.classes.lookup
        if kind is super and not args and self.tracer.frame is not None:
            return super_of(self.tracer, self.tracer.frame)
        handler = HANDLERS.get(kind)
        if handler is not None:
            result = handler(self.tracer, args, kwargs)
            if result is not NotImplemented:
                return result
        if kind in NATIVE_CLASSES:
            return natives.call(kind, args, kwargs)
        if kind is type or kind is super:
            return natives.make_class(kind, args, kwargs)
        action, reason = decide(kind)
        if action is Action.BREAK:
            raise Break.of(reason)
        if kind.__module__ in ("weakref", "_weakrefset"):
            raise Break(BreakKind.OUTSIDE, f"constructs a {kind.__qualname__}, which sees when objects die")
        # A class made here may name another module.
        if action is Action.LIBRARY and not self.values.is_fresh(kind):
            return self.values.mark_fresh(natives.call_library(kind, args, kwargs))
        if action is Action.GRAPH:
            return self.values.mark_fresh(natives.call_leaf(kind, args, kwargs))
        if issubclass(kind, enum.Enum):
            with no_foreign_code(kind.__qualname__):
                return kind(*args, **kwargs)
        if issubclass(kind, torch.Tensor):
            raise Break(BreakKind.UNSUPPORTED, f"constructs a {kind.__name__}", "construct it once, before")
        if not is_python_class(kind) and not issubclass(kind, (BaseException, *_PURE_IN_C)):
            raise Break(BreakKind.OPAQUE, f"constructs a {kind.__module__}.{kind.__qualname__} by code in C")
        if is_a(lookup(kind, "__del__"), types.FunctionType):
            raise Break(
                BreakKind.UNSUPPORTED, f"constructs a {kind.__qualname__}, which has a finaliser (`__del__`)"
            )
        meta = lookup(type(kind), "__call__")
        if is_a(meta, types.FunctionType):
            return self.call(meta, (kind, *args), kwargs)
        return self.construct(kind, args, kwargs)

    def construct(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do what `type.__call__` does: `__new__`, then `__init__`."""
        maker = self.tracer.classes.lookup(kind, "__new__")
        if is_a(maker, staticmethod):
            maker = maker.__func__
        if is_a(maker, types.FunctionType):
            made = self.call(maker, (kind, *args), kwargs)
        elif is_a(kind, type) and issubclass(kind, _ALLOCATORS):
            made = self._allocate(kind, args, kwargs)
        else:
            raise Break(BreakKind.OPAQUE, f"constructs a {kind.__module__}.{kind.__qualname__} by code in C")
        if not is_a(made, kind):
            return made
        initialise = self.tracer.classes.lookup(type(made), "__init__")
        if is_a(initialise, types.FunctionType):
            given = self.call(initialise, (made, *args), kwargs)
            if given is not None:
                raise TypeError(f"__init__() should return None, not '{type(given).__name__}'")
        elif not is_a(initialise, types.WrapperDescriptorType):
            self.call(self.tracer.attributes.bind(initialise, made, type(made), "__init__"), args, kwargs)
        elif initialise is not object.__init__:
            self.tracer.natives.call(initialise, (made, *args), kwargs)
        return made

    def _allocate(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        maker = kind.__new__
        if maker is not object.__new__:
            return self.tracer.natives.allocate(maker, kind, args, kwargs)
        if (args or kwargs) and self.tracer.classes.lookup(kind, "__init__") is object.__init__:
            raise TypeError(f"{kind.__name__}() takes no arguments")
        if getattr(kind, "__abstractmethods__", None):
            return object.__new__(kind)  # raises the TypeError that names the methods
        return self.values.mark_fresh(object.__new__(kind))


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether a call is more than `forward`. Checked on torch 2.11 to 2.15 (`_call_impl`)."""
    space, every = vars(module), vars(torch.nn.modules.module)
    if space.get("_compiled_call_impl") is not None:
        return True
    return any(space.get(name) or every.get(f"_global{name}") for name in HOOKS)
