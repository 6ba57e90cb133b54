"""Calls: what becomes of a call in traced code. Stepped, recorded as one operation, done by C, or a break."""

from __future__ import annotations

import datetime
import enum
import functools
import operator
import types
import weakref
from collections.abc import Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.bytecode.program import program_of
from torchrepro.frontend.graph_breaks import Break, BreakKind, BreakReason
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import Answers, NoGlobalHooks, NoHooks
from torchrepro.frontend.interpreter.binding import bind_arguments
from torchrepro.frontend.interpreter.callers import super_of
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.operations import Calls
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, Item
from torchrepro.frontend.trace import leaves
from torchrepro.frontend.trace.classes import (
    IN_C,
    MISSING,
    is_python_class,
    is_trusted_space,
    static_lookup,
)
from torchrepro.frontend.trace.fakes import outside_of_trace, tensors_in
from torchrepro.frontend.trace.foreign import RunsForeignCode, no_foreign_code
from torchrepro.frontend.trace.modules import ForwardContext, has_hooks
from torchrepro.frontend.trace.native import NATIVE_CLASSES
from torchrepro.frontend.trace.operator_functions import call_getter
from torchrepro.frontend.trace.policy import AUTOCAST, runs_natively, why_not_stepped
from torchrepro.frontend.trace.singles import is_single
from torchrepro.frontend.trace.special import SPECIAL
from torchrepro.frontend.trace.stepped import SteppedCallable
from torchrepro.torch_api.tensors import module_call_impl

_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_ORDER = type(functools.cmp_to_key(lambda one, other: 0))
_MODULE_CALL = torch.nn.Module.__call__
_CACHED = type(functools.lru_cache(lambda: None))
ORIGINAL = "_torchrepro_original"
"""Where a wrapper of ours keeps what it wraps."""

_MAX_DEPTH = 180

_PURE_IN_C = (*_GETTERS, datetime.date, datetime.time, datetime.timedelta)

_ALLOCATORS = (object, tuple, list, dict, set, frozenset, int, float, str, bytes, BaseException)


if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer


class TracedCalls(Calls):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.tracer, self.world = tracer, tracer.world
        self.values, self.dicts = tracer.values, tracer.dicts
        self.depth = 0
        """How many functions are being inlined."""

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind = type(function)
        if kind is types.FunctionType:
            return self._call_python(function, args, kwargs)
        if kind is types.MethodType:
            if function.__name__ == "apply" and _is_autograd_function(function.__self__):
                return self._call_autograd_function(function.__self__, args, kwargs)
            return self.call(function.__func__, (function.__self__, *args), kwargs)
        if is_a(function, type):
            return self._call_class(function, args, kwargs)
        if is_a(function, IN_C):
            owner = getattr(function, "__self__", None)
            if function.__name__ == "apply" and _is_autograd_function(owner):
                return self._call_autograd_function(owner, args, kwargs)
            return self.tracer.natives.call(function, args, kwargs)
        if kind is functools.partial:
            return self.call(function.func, (*function.args, *args), {**function.keywords, **kwargs})
        if kind in (_CACHED, *_GETTERS):
            self.values.pin(function)
        if kind is _CACHED:
            return self._call_cached(function, args, kwargs)
        if kind is staticmethod or kind is SteppedCallable:
            inner = function.__func__ if kind is staticmethod else function.function
            return self.call(inner, args, kwargs)
        if kind is _ORDER:
            return function(*args)
        if kind in _GETTERS:
            return call_getter(self.tracer, function, args, kwargs)
        original = leaves.original_of(function) or getattr(function, ORIGINAL, None)
        if original is not None:
            self.values.pin(function)
            return self.call(original, args, kwargs)
        if is_a(function, torch.nn.Module):
            return self._call_module(function, args, kwargs)
        if leaves.is_leaf(function):
            return self.tracer.natives.call_leaf(function, args, kwargs)
        return self._call_object(function, args, kwargs)

    def special(self, value: Any, name: str, *args: Any) -> Any:
        """Call a special method that the class defines in Python; `MISSING` where it does not."""
        found = self.tracer.classes.python_method(value, name)
        if found is None:
            return MISSING
        return self.call(self.tracer.attributes.bind(found, value, type(value), name), args, {})

    # Python

    def _call_python(
        self, function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        reason = leaves.why_break(function) or why_not_stepped(function)
        if function.__module__ in ("weakref", "_weakrefset"):
            reason = self._why_not_weak(function)
        if reason is not None:
            raise Break.of(reason)
        original = leaves.original_of(function)
        if original is not None:
            return self.call(original, args, kwargs)
        handler = SPECIAL.get(function)
        if handler is not None:
            result = handler(self.tracer, args, kwargs)
            if result is not NotImplemented:
                return result
        if leaves.is_constant_fold(function):
            return self.tracer.natives.answer(function, args, kwargs)
        if leaves.is_leaf(function):
            return self.tracer.natives.call_leaf(function, args, kwargs)
        if runs_natively(function):
            if function.__module__ == AUTOCAST and args and not self.values.is_fresh(args[0]):
                if not is_a(args[0], torch.autocast):
                    raise Break(BreakKind.UNSUPPORTED, "mixed precision that was begun outside of the trace")
                through = _Through(self.tracer, args[0])
                result = self.tracer.natives.call_leaf(function, (through, *args[1:]), kwargs)
                return args[0] if result is through else result
            return self.tracer.natives.call_library(function, args, kwargs)
        return self.inline(function, args, kwargs)

    def _why_not_weak(self, function: types.FunctionType) -> BreakReason | None:
        if not self.tracer.natives.in_standard_library():
            return BreakReason(BreakKind.OUTSIDE, "which objects are still alive cannot be guarded")
        if function is weakref.WeakKeyDictionary.__getitem__:
            # `functools.singledispatch` looks here before it looks at what is registered, which is guarded.
            raise KeyError
        return None

    def inline(self, function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function by stepping it; its defaults and outer variables come from where it does."""
        if function.__code__.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
            raise Break(BreakKind.UNSUPPORTED, f"{function.__qualname__} is asynchronous")
        try:
            bound = self._bind_arguments(function, args, kwargs)
        except TypeError as error:
            code = function.__code__
            error.add_note(f"{function.__qualname__} is defined at {code.co_filename}:{code.co_firstlineno}")
            raise
        frame = Frame.of_function(program_of(function.__code__), function, bound)
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
        defaults = _Adopting(self.tracer, function.__defaults__ or (), Attribute(source, "__defaults__"))
        kwdefaults = function.__kwdefaults__ or {}
        return bind_arguments(
            function,
            args,
            kwargs,
            defaults=defaults,
            kwdefaults={
                name: self.world.adopt(value, Item.at(Attribute(source, "__kwdefaults__"), name))
                for name, value in kwdefaults.items()
                if name not in kwargs
            },
        )

    def _know_cells(self, function: types.FunctionType) -> None:
        """The outer variables of a function that existed before are found in it."""
        if not function.__closure__ or self.values.is_fresh(function):
            return
        home = Attribute(self.values.home_of(function), "__closure__")
        for index, cell in enumerate(function.__closure__):
            if self.values.source_of(cell) is None and not self.values.is_fresh(cell):
                self.world.adopt_cell(cell, Item.at(home, index))

    def _call_cached(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A memoised function of constants gives what it gave before, whatever has changed since.

        What it has not given yet it is asked for twice: by stepping, which sees whether it changes anything
        (it would not the next time), and for real, so that it remembers.
        """
        constant = all(map(is_constant, (*args, *kwargs.values())))
        known = self._recalled(function, args, kwargs) if constant else MISSING
        if known is not MISSING:
            return self._remembered(function, args, kwargs, known)
        before = self.values.written()
        result = self.call(function.__wrapped__, args, kwargs)
        if self.values.written() != before:
            raise Break(BreakKind.OUTSIDE, f"{function.__name__} changes something, the first time only")
        if constant:
            self._remembered(function, args, kwargs, result)
            with outside_of_trace():
                function(*args, **kwargs)
        return result

    def _recalled(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a memoised function has given before; `MISSING` where it would run for that."""
        try:
            with no_foreign_code(function.__name__), outside_of_trace():
                return function(*args, **kwargs)
        except RunsForeignCode:
            return MISSING

    def _remembered(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        if not (is_constant(result) or is_single(result)):
            raise Break(BreakKind.OPAQUE, f"{function.__name__} keeps its results, and gave an object")
        # Asked again on each call: it may have been told to forget.
        self.values.guards.add(Answers(function, tuple(args), result, tuple(kwargs.items())))
        return result

    def _call_autograd_function(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`apply` of a function with a backward of its own, where no gradient is asked for: its forward."""
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((*args, kwargs))):
            raise Break(
                BreakKind.UNSUPPORTED,
                f"{kind.__qualname__}.apply: a backward of the user's own is not followed",
            )
        forward = self.tracer.attributes.load(kind, "forward")
        if self.tracer.classes.lookup(kind, "setup_context") is not static_lookup(
            torch.autograd.Function, "setup_context"
        ):
            return self.call(forward, args, kwargs)
        context = self.values.mark_fresh(ForwardContext(len(args)))
        return self.call(forward, (context, *args), kwargs)

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
            self.values.guards.add(NoGlobalHooks())
            return self.call(self.tracer.attributes.load(module, "forward"), args, kwargs)

    def _call_object(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.values.require_known(function)
        found = self.tracer.classes.lookup(type(function), "__call__")
        if found is MISSING:
            raise TypeError(f"'{type(function).__name__}' object is not callable")
        if not is_python_class(type(function)) or is_a(found, IN_C):
            raise Break(BreakKind.OPAQUE, f"a call of a {type(function).__qualname__}")
        return self.call(
            self.tracer.attributes.bind(found, function, type(function), "__call__"), args, kwargs
        )

    # Classes

    def _call_class(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if kind is super and not args and self.tracer.frame is not None:
            return super_of(self.tracer, self.tracer.frame)
        handler = SPECIAL.get(kind)
        if handler is not None:
            result = handler(self.tracer, args, kwargs)
            if result is not NotImplemented:
                return result
        if kind in NATIVE_CLASSES:
            return self.tracer.natives.call(kind, args, kwargs)
        if kind is type or kind is super:
            return self.tracer.natives.make_class(kind, args, kwargs)
        reason = leaves.why_break(kind)
        if reason is not None:
            raise Break.of(reason)
        if kind.__module__ in ("weakref", "_weakrefset") and not self.tracer.natives.in_standard_library():
            raise Break(BreakKind.OUTSIDE, f"a {kind.__qualname__} is made, which sees when objects die")
        if runs_natively(kind) and not self.values.is_fresh(
            kind
        ):  # a class made here may name another module
            return self.values.mark_fresh(self.tracer.natives.call_library(kind, args, kwargs))
        if leaves.is_leaf(kind):
            return self.values.mark_fresh(self.tracer.natives.call_leaf(kind, args, kwargs))
        if issubclass(kind, enum.Enum):
            return self._enum_member(kind, args, kwargs)
        if issubclass(kind, torch.Tensor):
            raise Break(BreakKind.UNSUPPORTED, f"a {kind.__name__} is made", "make it before, once")
        if not is_python_class(kind) and not issubclass(kind, (BaseException, *_PURE_IN_C)):
            raise Break(BreakKind.OPAQUE, f"a {kind.__module__}.{kind.__qualname__} is made, by code in C")
        if is_a(self.tracer.classes.lookup(kind, "__del__"), types.FunctionType):
            raise Break(BreakKind.UNSUPPORTED, f"a {kind.__qualname__} is made, whose end runs its __del__")
        meta = self.tracer.classes.lookup(type(kind), "__call__")
        if is_a(meta, types.FunctionType):
            return self.call(meta, (kind, *args), kwargs)
        return self.construct(kind, args, kwargs)

    def _enum_member(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        missing = self.tracer.classes.lookup(kind, "_missing_")
        own = isinstance(missing, classmethod) and not is_trusted_space(missing.__func__.__globals__)
        asked = own and len(args) == 1 and not kwargs and is_constant(args[0])
        if asked and args[0] not in kind._value2member_map_:
            found = self.call(self.tracer.attributes.bind_to_class(missing, kind), args, {})
            if isinstance(found, kind):
                return found
        with no_foreign_code(kind.__qualname__):
            return kind(*args, **kwargs)

    def construct(self, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What `type.__call__` does: `__new__`, then `__init__`."""
        maker = self.tracer.classes.lookup(kind, "__new__")
        if is_a(maker, staticmethod):
            maker = maker.__func__
        if is_a(maker, types.FunctionType):
            made = self.call(maker, (kind, *args), kwargs)
        elif is_a(kind, type) and issubclass(kind, _ALLOCATORS):
            made = self._allocate(kind, args, kwargs)
        else:
            raise Break(BreakKind.OPAQUE, f"a {kind.__module__}.{kind.__qualname__} is made by code in C")
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
        if maker is object.__new__:
            if (args or kwargs) and self.tracer.classes.lookup(kind, "__init__") is object.__init__:
                raise TypeError(f"{kind.__name__}() takes no arguments")
            if getattr(kind, "__abstractmethods__", None):
                return object.__new__(kind)  # raises the TypeError that names the methods
            return self.values.mark_fresh(object.__new__(kind))
        return self.tracer.natives.allocate(maker, kind, args, kwargs)


class _Adopting(Sequence[Any]):
    """Defaults of a function that are adopted when they are used."""

    def __init__(self, tracer: Tracer, values: tuple[Any, ...], source: Attribute) -> None:
        self._tracer, self._values, self._source = tracer, values, source

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self._values))[index]
        return self._tracer.world.adopt(self._values[index], Item.at(self._source, index))


class _Through:
    """An object from before the call, for a function that runs natively: each attribute is traced."""

    __slots__ = ("_tracer", "_value")

    def __init__(self, tracer: Tracer, value: Any) -> None:
        object.__setattr__(self, "_tracer", tracer)
        object.__setattr__(self, "_value", value)

    def __getattr__(self, name: str) -> Any:
        return self._tracer.attributes.load(self._value, name)

    def __setattr__(self, name: str, new: Any) -> None:
        self._tracer.attributes.store(self._value, name, new)


def _is_autograd_function(owner: Any) -> bool:
    return is_a(owner, type) and issubclass(owner, torch.autograd.Function)
