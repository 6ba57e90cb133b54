"""Calls in traced code: inlined, recorded as one operation, run now by C, or a graph break."""

from __future__ import annotations

import datetime
import enum
import functools
import itertools
import sys
import types
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from operator import truth
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as nn_module

from torchrepro.frontend.graph_breaks import Break, BreakKind, Unsupported
from torchrepro.frontend.guards.constants import is_constant, same
from torchrepro.frontend.guards.kinds import GLOBAL_HOOKS, Answers, Is, Length, NoHooks
from torchrepro.frontend.interpreter.frame import Frame, bind_arguments
from torchrepro.frontend.interpreter.operations import CALL, Calls, call_from, super_of
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, Item
from torchrepro.frontend.trace import foreign, rules, torch_rules
from torchrepro.frontend.trace.arrays import emulation_of
from torchrepro.frontend.trace.classes import IN_C, MISSING, is_python_class, is_single, is_trusted_class
from torchrepro.frontend.trace.fakes import outside_of_trace, tensors_in
from torchrepro.frontend.trace.foreign import (
    SteppedCallable,
    has_objects,
    is_iterator,
    no_foreign_code,
    unbound,
)
from torchrepro.frontend.trace.handlers import GETTERS, HANDLERS, call_getter
from torchrepro.frontend.trace.rules import Action
from torchrepro.frontend.trace.values import Pending
from torchrepro.torch_api.modules import original_of
from torchrepro.torch_api.tensors import module_call_impl

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_MODULE_CALL = torch.nn.Module.__call__
_CACHED = type(functools.lru_cache(lambda: None))
ORIGINAL = "_torchrepro_original"
"""The attribute in which our wrappers store the wrapped callable."""

_MAX_DEPTH = 180
_NOT_SHARED = 2
"""What `sys.getrefcount` gives for an object that one variable refers to."""
_PURE_IN_C = (*GETTERS, datetime.date, datetime.time, datetime.timedelta)
_ALLOCATORS = (object, tuple, list, dict, set, frozenset, int, float, str, bytes, BaseException)

_DONE = (Action.FOLD, Action.GRAPH)

Args = Sequence[Any]
Kwargs = Mapping[str, Any]


class TracedCalls(Calls):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.tracer, self.values, self.dicts = tracer, tracer.values, tracer.dicts
        self.lookup = tracer.classes.lookup
        self.depth = 0
        """How many functions are being inlined."""

    def call(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        kind: Any = type(function)
        emulated = emulation_of(function)
        if emulated is not None:
            self.values.guard_numpy()
            return emulated(*args, **kwargs)
        if kind is types.FunctionType:
            return self._call_python(function, args, kwargs)
        if kind is types.MethodType:
            return self.call(function.__func__, (function.__self__, *args), kwargs)
        if is_a(function, type):
            return self._call_class(function, args, kwargs)
        if is_a(function, IN_C):
            return self._call_native(function, args, kwargs)
        if kind is partial:
            return self.call(function.func, (*function.args, *args), {**function.keywords, **kwargs})
        if kind in (_CACHED, *GETTERS):
            self.values.pin(function)
            caller = self._call_cached if kind is _CACHED else partial(call_getter, self.tracer)
            return caller(function, args, kwargs)
        if kind is staticmethod or kind is SteppedCallable:
            inner = function.__func__ if kind is staticmethod else function.function
            return self.call(inner, args, kwargs)
        if is_python_class(kind) and not is_trusted_class(kind) and not is_a(function, torch.nn.Module):
            return self._call_object(function, args, kwargs)  # before any `getattr` on it
        original = original_of(function) or getattr(function, ORIGINAL, None)
        a_module = is_a(function, torch.nn.Module)
        if original is not None and not (a_module and torch_rules.has_hooks(function)):
            self.values.pin(function)
            if a_module:
                self.values.guards.add(NoHooks(self.values.home_of(function)))
            return self.call(original, args, kwargs)
        if is_a(function, torch.nn.Module):
            return self._call_module(function, args, kwargs)
        if torch_rules.is_leaf(function):
            return self._call_leaf(function, args, kwargs)
        return self._call_object(function, args, kwargs)

    def special(self, value: Any, name: str, *args: Any) -> Any:
        """Call a special method that the class defines in Python; return `MISSING` where it does not."""
        found = self.tracer.classes.python_method(value, name)
        if found is None:
            return MISSING
        return self.call(self.tracer.attributes.bind(found, value, type(value), name), args, {})

    # Python

    def _call_python(self, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
        action, found = self._by_rule(function, args, kwargs)
        if action in _DONE:
            return found
        if action is Action.UNWRAP:
            return self.call(found, args, kwargs)
        if action is Action.LIBRARY:
            if function.__module__ == rules.AUTOCAST and args and not self.values.is_fresh(args[0]):
                raise Unsupported("mixed precision that was begun outside of the trace")
            return self._call_library(function, args, kwargs)
        return self.inline(function, args, kwargs)

    def _by_rule(self, function: Any, args: Args, kwargs: Kwargs) -> tuple[Action, Any]:
        """Apply the rules: raise a break, or return the action and, if it is carried out here, the result."""
        action, detail = rules.decide(function)
        if action is Action.BREAK:
            raise Break.of(detail)
        if action is Action.FOLD:
            return action, self._answer(function, args, kwargs)
        return action, self._call_leaf(function, args, kwargs) if action is Action.GRAPH else detail

    def _handled(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return the result of a function's handler; `NotImplemented` where there is none for this call."""
        handler = HANDLERS.get(function) if type(function).__hash__ is not None else None
        return NotImplemented if handler is None else handler(self.tracer, args, kwargs)

    def inline(self, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
        """Inline a Python function; the sources of its defaults and outer variables derive from its own."""
        if function.__code__.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
            raise Unsupported(f"{function.__qualname__} is asynchronous")
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
            raise Unsupported(f"{function.__qualname__} is called {self.depth} calls deep")
        self.depth += 1
        try:
            return self.tracer.enter(frame)
        finally:
            self.depth -= 1

    def _bind_arguments(self, function: types.FunctionType, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        if self.values.is_fresh(function) or not (function.__defaults__ or function.__kwdefaults__):
            return bind_arguments(function, args, kwargs)
        source = self.values.home_of(function)
        defaults, kwdefaults = Attribute(source, "__defaults__"), Attribute(source, "__kwdefaults__")
        places = [Item.at(defaults, index) for index in range(len(function.__defaults__ or ()))]
        bound = bind_arguments(
            function,
            args,
            kwargs,
            defaults=tuple(map(Pending, function.__defaults__ or (), places)),
            kwdefaults={
                name: Pending(value, Item.at(kwdefaults, name))
                for name, value in (function.__kwdefaults__ or {}).items()
            },
        )
        if any(self.values.source_of(value) in places for value in bound.values()):
            self.values.guards.add(Length(defaults, len(places)))  # the last parameters have them
        return {name: self.tracer.settled(value) for name, value in bound.items()}

    def _know_cells(self, function: types.FunctionType) -> None:
        """Register the sources of the closure cells of a function that existed before the call."""
        if not function.__closure__ or self.values.is_fresh(function):
            return
        home = Attribute(self.values.home_of(function), "__closure__")
        for index, cell in enumerate(function.__closure__):
            if self.values.source_of(cell) is None and not self.values.is_fresh(cell):
                self.values.register(cell, cell, Item.at(home, index))

    def _call_cached(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return a memoised function's cached result for these constants; a graph break if there is none."""
        name = function.__name__
        if not all(map(is_constant, (*args, *kwargs.values()))):
            raise Break(BreakKind.OPAQUE, f"{name} keeps its results, and is given an object")
        try:
            with no_foreign_code(name), outside_of_trace():
                result = function(*args, **kwargs)
        except foreign.RunsForeignCode:
            raise Break(BreakKind.OUTSIDE, f"{name} keeps its results, and has none for these yet") from None
        if not (is_constant(result) or is_single(result)):
            raise Break(BreakKind.OPAQUE, f"{name} keeps its results, and gave an object")
        # Guarded, as the cache may have been cleared by the next call.
        self._guard_answer(function, args, kwargs, result)
        return result

    # Objects and modules

    def _call_module(self, module: torch.nn.Module, args: Args, kwargs: Kwargs) -> Any:
        if is_a(module, torch.jit.ScriptModule):
            raise Break(BreakKind.OPAQUE, f"{type(module).__name__} is a script of torch.jit")
        kind = type(module)
        replaced = self.lookup(kind, "_call_impl") is not module_call_impl
        if replaced or self.lookup(kind, "__call__") is not _MODULE_CALL:
            return self._call_object(module, args, kwargs)
        with self.tracer.inside_module(module):
            if torch_rules.has_hooks(module):
                return self.call(module_call_impl, (module, *args), kwargs)
            if not self.values.is_fresh(module):
                self.values.guards.add(NoHooks(self.values.home_of(module)))
            self.values.guards.add(NoHooks(self.values.kept.hold(nn_module, "torch.nn"), GLOBAL_HOOKS))
            return self.call(self.tracer.attributes.load(module, "forward"), args, kwargs)

    def _call_object(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        self.values.require_known(function)
        kind = type(function)
        found = self.lookup(kind, "__call__")
        if found is MISSING:
            raise TypeError(f"'{kind.__name__}' object is not callable")
        if not is_python_class(kind) or is_a(found, IN_C):
            raise Break(BreakKind.OPAQUE, f"a call of a {kind.__qualname__}")
        return self.call(self.tracer.attributes.bind(found, function, kind, "__call__"), args, kwargs)

    # Classes

    def _call_class(self, kind: Any, args: Args, kwargs: Kwargs) -> Any:
        if kind is super and not args and self.tracer.frame is not None:
            return super_of(self.tracer, self.tracer.frame)
        result = self._handled(kind, args, kwargs)
        if result is not NotImplemented:
            return result
        if kind in rules.NATIVE_CLASSES:
            return self._call_native(kind, args, kwargs)
        if kind is type or kind is super:
            return self._make_class(kind, args, kwargs)
        action, found = self._by_rule(kind, args, kwargs)
        if action in _DONE:
            return self.values.mark_fresh(found)
        if kind.__module__ in ("weakref", "_weakrefset"):
            raise Break(BreakKind.OUTSIDE, f"constructs a {kind.__qualname__}, which sees when objects die")
        # A class made here may name another module.
        if action is Action.LIBRARY and not self.values.is_fresh(kind):
            return self.values.mark_fresh(self._call_library(kind, args, kwargs))
        if issubclass(kind, enum.Enum):
            with no_foreign_code(kind.__qualname__):
                return kind(*args, **kwargs)
        if issubclass(kind, torch.Tensor):
            raise Unsupported(f"constructs a {kind.__name__}", "construct it once, before")
        if not is_python_class(kind) and not issubclass(kind, (BaseException, *_PURE_IN_C)):
            raise _constructed_in_c(kind)
        if is_a(self.lookup(kind, "__del__"), types.FunctionType):
            raise Unsupported(f"constructs a {kind.__qualname__}, which has a finaliser (`__del__`)")
        meta = self.lookup(type(kind), "__call__")
        if is_a(meta, types.FunctionType):
            return self.call(meta, (kind, *args), kwargs)
        return self.construct(kind, args, kwargs)

    def construct(self, kind: Any, args: Args, kwargs: Kwargs) -> Any:
        """Do what `type.__call__` does: `__new__`, then `__init__`."""
        maker = self.lookup(kind, "__new__")
        if is_a(maker, staticmethod):
            maker = maker.__func__
        if is_a(maker, types.FunctionType):
            made = self.call(maker, (kind, *args), kwargs)
        elif is_a(kind, type) and issubclass(kind, _ALLOCATORS):
            made = self._allocate(kind, args, kwargs)
        else:
            raise _constructed_in_c(kind)
        if not is_a(made, kind):
            return made
        initialise = self.lookup(type(made), "__init__")
        if is_a(initialise, types.FunctionType):
            given = self.call(initialise, (made, *args), kwargs)
            if given is not None:
                raise TypeError(f"__init__() should return None, not '{type(given).__name__}'")
        elif not is_a(initialise, types.WrapperDescriptorType):
            self.call(self.tracer.attributes.bind(initialise, made, type(made), "__init__"), args, kwargs)
        elif initialise is not object.__init__:
            self._call_native(initialise, (made, *args), kwargs)
        return made

    def _allocate(self, kind: Any, args: Args, kwargs: Kwargs) -> Any:
        maker = kind.__new__
        if maker is not object.__new__:
            self.dicts.complete_all((*args, *kwargs.values()))
            return self.values.mark_fresh(self._run(maker, maker, MISSING, (kind, *args), kwargs))
        if (args or kwargs) and self.lookup(kind, "__init__") is object.__init__:
            raise TypeError(f"{kind.__name__}() takes no arguments")
        if getattr(kind, "__abstractmethods__", None):
            return object.__new__(kind)  # raises the TypeError that names the methods
        return self.values.mark_fresh(object.__new__(kind))

    # What is not traced: functions in C and torch's own

    def _answer(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return the result of a torch query about constants, modes or the process, guarded if needed."""
        answer = torch_rules.answer(function, args, kwargs)
        if torch_rules.needs_guard(function):
            self._guard_answer(function, args, kwargs, answer)
        return answer

    def _guard_answer(self, function: Any, args: Args, kwargs: Kwargs, answer: Any) -> None:
        with outside_of_trace():
            seen = function(*args, **kwargs)
        if not all(map(is_constant, (*args, *kwargs.values(), answer))) or not same(seen, answer):
            raise Break(BreakKind.OPAQUE, f"what {function.__name__} answers cannot be guarded")
        asked = self.values.kept.hold(function)
        self.values.guards.add(Answers(asked, tuple(args), answer, tuple(kwargs.items())))

    def _call_leaf(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a function of torch, which the recorder records. A generator is exhausted now."""
        self.dicts.complete_all((*args, *kwargs.values()))
        if is_a(function, types.FunctionType) and function.__defaults__:
            self.values.guards.add(
                Is(Attribute(self.values.kept.hold(function), "__defaults__"), function.__defaults__)
            )
        result = function(*args, **kwargs)
        return iter(list(result)) if type(result) is types.GeneratorType else result

    def _call_library(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a function of Python's library as if it were written in C. A generator is exhausted now."""
        for value in (*args, *kwargs.values()):
            self._guard_all(function, value)
        self.dicts.complete_all((*args, *kwargs.values()))
        if rules.makes_classes(function):
            return self._make_class(function, args, kwargs)
        call = types.FunctionType(CALL, self.tracer.innermost.globals)  # from outside of the watched code
        with no_foreign_code(function.__qualname__, library=True):
            result = call(function, args, kwargs)
            if type(result) is types.GeneratorType:
                return iter(list(result))
        new = is_python_class(type(result)) and sys.getrefcount(result) == _NOT_SHARED
        return self.values.mark_fresh(result) if new else result

    def _guard_all(self, function: Any, value: Any) -> None:
        """Guard what a function of a library may read from an argument; a graph break where that fails."""
        kind: Any = type(value)
        if kind is types.MethodType:
            self._guard_all(function, value.__func__)
        elif kind is types.FunctionType:
            parts = ("__defaults__", "__kwdefaults__", "__dict__")
            self.dicts.complete_all([self.tracer.attributes.load(value, part) for part in parts])
        elif is_python_class(kind) and not self.values.is_fresh(value):
            if is_trusted_class(kind):
                self.values.pin(value)  # for example a fraction: what is read from it is not guarded
            elif function.__module__ != "typing" and not is_a(value, type | enum.Enum):
                told = f"{function.__qualname__} reads a {kind.__qualname__}, which no guard covers"
                raise Break(BreakKind.OPAQUE, told)

    def _make_class(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        made = call_from(self.tracer.innermost, function, args, kwargs)
        return self.values.mark_fresh(made) if is_a(made, type) else made

    def _call_native(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        plain, owner = unbound(function)
        full = args if owner is MISSING else (owner, *args)
        result = self._handled(plain, full, kwargs)
        if result is not NotImplemented:
            return result
        self.values.require_known(function)
        action, found = self._by_rule(function, args, kwargs)
        if action in _DONE:
            return found
        by_reference = getattr(function, "__name__", "") in rules.BY_REFERENCE and owner is not MISSING
        read = (owner,) if by_reference else (*full, *kwargs.values())
        self.values.require_known(*read)
        if not by_reference or is_a(owner, dict):
            self.dicts.complete_all(read)
        if plain is object.__eq__ or plain is object.__ne__:
            return function(*args)
        result = self._run(function, plain, owner, args, kwargs)
        if rules.asks_torch(function) and next(tensors_in((args, kwargs)), None) is None:
            self._guard_answer(function, args, kwargs, result)
        if getattr(plain, "__name__", "") == "__new__" or function is types.SimpleNamespace:
            return self.values.mark_fresh(result)
        return result

    def _run(self, function: Any, plain: Any, owner: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run a function in C; iterables and callables of the user among its arguments are traced."""
        own = 1 if is_a(function, types.MethodDescriptorType | types.WrapperDescriptorType) else 0
        args, kwargs = list(args), dict(kwargs)
        places = rules.ITERATING.get(plain) if type(plain).__hash__ is not None else None
        for index in range(*places.indices(len(args) - own)) if places else ():
            args[own + index] = self._prepared(plain, args[own + index])
        if plain in (filter, itertools.filterfalse) and args and args[0] is None:
            args[0] = truth
        if plain in rules.HIGHER_ORDER or plain is list.sort:
            first = args[0] if args else None
            compares = plain in rules.COMPARING_RESULTS
            stepped = foreign.CheckedCallable if compares else SteppedCallable
            args = [stepped(self.tracer, value) if _calls_back(value, compares) else value for value in args]
            if plain in rules.FUNCTION_FIRST and is_a(first, (*IN_C, type)):
                args[0] = SteppedCallable(self.tracer, first)
            for name in [name for name, value in kwargs.items() if _calls_back(value, compares)]:
                kwargs[name] = stepped(self.tracer, kwargs[name])
        involved = (*args, *kwargs.values()) if owner is MISSING else (owner, *args, *kwargs.values())
        unknown = plain in rules.HASHING and any(map(is_iterator, args))
        if not unknown and not any(map(has_objects, involved)):
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "a function in C")
        if plain in rules.USING_ITEMS:
            raise Unsupported(f"{name} compares or adds objects later, while it is iterated over")
        with no_foreign_code(name):
            return function(*args, **kwargs)

    def _prepared(self, function: Any, value: Any) -> Any:
        """Return an iterable for a function in C that runs no untraced method of the user's."""
        made = (
            self.tracer.items.pairs(value) if function in rules.MAPPING else self.tracer.items.iterable(value)
        )
        if function in rules.USING_ITEMS and is_iterator(made):
            return foreign.CheckedIterator(self.tracer, made)
        return list(made) if function in rules.COLLECTED and is_iterator(made) else made


def _calls_back(value: Any, native: bool) -> bool:
    """Return whether it is a callable that may run code of the user's; `native`: or a function in C."""
    if is_a(value, types.FunctionType | types.MethodType | partial) or (native and is_a(value, IN_C)):
        return True
    if is_a(value, type):
        return is_python_class(value)
    return is_python_class(type(value)) and callable(value) and not hasattr(value, "__iter__")


def _constructed_in_c(kind: Any) -> Break:
    return Break(BreakKind.OPAQUE, f"constructs a {kind.__module__}.{kind.__qualname__} by code in C")
