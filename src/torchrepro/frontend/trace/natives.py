"""Native calls: functions in C, and torch's own, called on values of the trace; or a break."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import Answers
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace import torch_rules
from torchrepro.frontend.trace.classes import (
    IN_C,
    MISSING,
    is_python_class,
    is_trusted_class,
    static_lookup,
)
from torchrepro.frontend.trace.foreign import SteppedCallable, caller_in, has_objects, no_foreign_code
from torchrepro.frontend.trace.handlers import HANDLERS
from torchrepro.frontend.trace.rules import (
    BY_REFERENCE,
    FUNCTION_FIRST,
    HIGHER_ORDER,
    ITERATING,
    MAPPING,
    Action,
    decide,
    makes_classes,
)

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer


class NativeCalls:
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.values, self.dicts = tracer, tracer.values, tracer.dicts

    def answer(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a question to torch about constants, modes or the process."""
        answer = torch_rules.answer(function, args, kwargs)
        if torch_rules.needs_guard(function):
            if kwargs or not all(map(is_constant, (*args, answer))):
                raise Break(BreakKind.OPAQUE, f"what {function.__name__} answers cannot be guarded")
            self.values.guards.add(Answers(self.values.kept.hold(function), tuple(args), answer))
        return answer

    def call_leaf(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of torch; the recorder sees what it does."""
        self.dicts.complete_all((*args, *kwargs.values()))
        result = function(*args, **kwargs)
        return iter(list(result)) if type(result) is types.GeneratorType else result

    def call_library(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of Python's library as if it were written in C."""
        for value in (*args, *kwargs.values()):
            kind: Any = type(value)
            if is_python_class(kind) and is_trusted_class(kind):
                self.values.pin(value)  # a fraction, say: what is read of it is not guarded
        self.dicts.complete_all((*args, *kwargs.values()))
        if makes_classes(function):
            return self.make_class(function, args, kwargs)
        assert self.tracer.frame is not None
        call = caller_in(self.tracer.frame.globals)
        with no_foreign_code(function.__qualname__, library=True):
            result = call(function, args, kwargs)
            # What it yields is computed now, while its arguments are what they are.
            return iter(list(result)) if type(result) is types.GeneratorType else result

    def make_class(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        assert self.tracer.frame is not None
        made = caller_in(self.tracer.frame.globals)(function, args, kwargs)
        return self.values.mark_fresh(made) if is_a(made, type) else made

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        plain, owner = _unbound(function)
        handler = HANDLERS.get(plain) if _hashable(plain) else None
        full = args if owner is MISSING else (owner, *args)
        if handler is not None:
            result = handler(self.tracer, full, kwargs)
            if result is not NotImplemented:
                return result
        self.values.require_known(function)
        action, reason = decide(function)
        if action is Action.BREAK:
            raise Break.of(reason)
        if action is Action.FOLD:
            return self.answer(function, args, kwargs)
        if action is Action.GRAPH:
            return self.call_leaf(function, args, kwargs)
        by_reference = getattr(function, "__name__", "") in BY_REFERENCE and owner is not MISSING
        if not by_reference:
            self.values.require_known(*full, *kwargs.values())
            self.dicts.complete_all((*full, *kwargs.values()))
        else:
            self.values.require_known(owner)
            if is_a(owner, dict):
                self.dicts.complete(owner)
        if plain is object.__eq__ or plain is object.__ne__:
            return function(*args)
        args, kwargs = self._for_native(function, plain, args, kwargs)
        result = _run(function, full, args, kwargs)
        if getattr(plain, "__name__", "") == "__new__" or function is types.SimpleNamespace:
            return self.values.mark_fresh(result)
        return result

    def allocate(self, maker: Any, kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a new object, by a `__new__` in C."""
        self.dicts.complete_all((*args, *kwargs.values()))
        full, kwargs = self._for_native(maker, maker, (kind, *args), kwargs)
        return self.values.mark_fresh(_run(maker, full, full, kwargs))

    def _for_native(
        self, function: Any, plain: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return arguments as C can use them: iterables and functions of the user are traced."""
        own = 1 if is_a(function, types.MethodDescriptorType | types.WrapperDescriptorType) else 0
        args = [*args[:own], *self._with_iterables(plain, args[own:])]
        if plain is filter and args and args[0] is None:
            args = [operator.truth, *args[1:]]
        if plain in HIGHER_ORDER or plain is list.sort:
            first = args[0] if args else None
            args = [self._callback(value) for value in args]
            if plain in FUNCTION_FIRST and is_a(first, (*IN_C, type)):
                args[0] = SteppedCallable(self.tracer, first)
            kwargs = {name: self._callback(value) for name, value in kwargs.items()}
        return args, kwargs

    def _with_iterables(self, function: Any, args: Sequence[Any]) -> Sequence[Any]:
        """What a function in C iterates over, made such that it runs no method of the user's."""
        places = ITERATING.get(function) if _hashable(function) else None
        if places is None:
            return args
        made = list(args)
        for index in range(*places.indices(len(made))):
            made[index] = self._prepared(function, made[index])
        return made

    def _prepared(self, function: Any, value: Any) -> Any:
        if function in MAPPING:
            return self.tracer.items.pairs(value)
        return self.tracer.items.iterable(value)

    def _callback(self, value: Any) -> Any:
        if is_a(value, types.FunctionType | types.MethodType | functools.partial):
            return SteppedCallable(self.tracer, value)
        if is_a(value, type):
            return SteppedCallable(self.tracer, value) if is_python_class(value) else value
        if is_python_class(type(value)) and callable(value) and not hasattr(value, "__iter__"):
            return SteppedCallable(self.tracer, value)
        return value


def _run(function: Any, involved: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not any(map(has_objects, (*involved, *kwargs.values()))):
        return function(*args, **kwargs)
    with no_foreign_code(getattr(function, "__name__", "a function in C")):
        return function(*args, **kwargs)


def _unbound(function: Any) -> tuple[Any, Any]:
    """A method in C as its class has it, and the object it is bound to."""
    if is_a(function, types.MethodWrapperType):
        return static_lookup(function.__objclass__, function.__name__), function.__self__
    owner = getattr(function, "__self__", None)
    if is_a(function, types.BuiltinFunctionType) and owner is not None:
        if is_a(owner, types.ModuleType | type):
            return function, MISSING
        return static_lookup(type(owner), function.__name__), owner
    return function, MISSING


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None
