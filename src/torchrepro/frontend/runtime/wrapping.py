"""Wrapping: a callable or a module as one that is captured when it is called."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any, cast

import torch

from torchrepro.frontend.guards.kinds import HOOKS
from torchrepro.frontend.interpreter.frame import bind_arguments
from torchrepro.frontend.runtime.capture import CaptureError
from torchrepro.frontend.runtime.dispatch import dispatch
from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.source import FrameState
from torchrepro.frontend.trace.calls import ORIGINAL
from torchrepro.frontend.trace.classes import IN_C, is_python_class, static_lookup
from torchrepro.frontend.trace.recorder import Recorder
from torchrepro.frontend.trace.torch_rules import has_hooks
from torchrepro.nouns.errors import TorchReproError
from torchrepro.torch_api.modes import current_function_modes
from torchrepro.torch_api.modules import before_load_state_dict, original_of
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.torch_api.tensors import module_call_impl

MOST_NESTED = 32
"""Nesting of captured functions. Each takes several of our frames within Python's recursion limit."""


class _Running(threading.local):
    calls = 0


_running = _Running()


class WrappedFunction:
    """A wrapper of a callable of the user's. Binds like a function where it is a method."""

    word = "wrapped"

    def __init__(self, original: Any) -> None:
        functools.update_wrapper(self, original)
        setattr(self, ORIGINAL, original)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __deepcopy__(self, memo: Any) -> WrappedFunction:
        return self

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])  # pickled by name, like a function

    def __repr__(self) -> str:
        return f"<{self.word} {getattr(self, ORIGINAL)!r}>"


class TracedFunction(WrappedFunction):
    """A Python function that is captured when it is called."""

    word = "traced"

    def __init__(self, function: types.FunctionType, settings: Settings) -> None:
        super().__init__(function)
        self._function = function
        self._settings = settings

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        function = self._function
        why = why_python_runs(function)
        if why and self._settings.fullgraph:
            raise CaptureError(f"{function.__qualname__} is not one graph: {why}")
        if why or _running.calls >= MOST_NESTED or _is_tracing():
            return function(*args, **kwargs)
        bound = bind_arguments(function, args, kwargs)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        _running.calls += 1
        try:
            return dispatch(function, FrameState(bound, cells), self._settings)
        finally:
            _running.calls -= 1


_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def why_python_runs(function: Any) -> str:
    """Return why a function is not captured by itself; empty where it is."""
    flags = function.__code__.co_flags if isinstance(function, types.FunctionType) else 0
    if flags & _ASYNCHRONOUS:
        return "asynchronous functions are not captured"
    if flags & inspect.CO_GENERATOR:
        return "a generator is captured as part of the function that uses it, not by itself"
    disabled = getattr(function, "_torchdynamo_disable", False) is True
    return "it is under torch.compiler.disable" if disabled else ""


def not_python(target: Any, verb: str) -> TorchReproError:
    """Return the error for a target that is not callable or has no Python code."""
    a_class = isinstance(target, type)
    return TorchReproError(
        f"{target!r} is {'a class' if a_class else 'not a Python function, method or module'}",
        next_step=f"{verb} an object of it" if a_class else f"wrap the call in a function and {verb} that",
    )


def untraced(function: Any) -> Any:
    """Return what `torch.compile` or `trace` wraps; the function itself where it is no wrapper of theirs."""
    if isinstance(function, types.MethodType):
        inner = untraced(function.__func__)
        return function if inner is function.__func__ else types.MethodType(inner, function.__self__)
    found = original_of(function)
    # By the class: `functools.wraps` copies the attribute to others.
    if isinstance(function, WrappedFunction | TracedModule):
        found = getattr(function, ORIGINAL)
    return function if found is None else untraced(found)


def as_python(function: Any) -> Any:
    """Return a Python function that calls an operator of torch or one of its functions in C.

    Everything else is returned as it is.
    """
    if not isinstance(function, (*IN_C, OpOverload, OpOverloadPacket)):
        return function
    bound_to_tensor = isinstance(getattr(function, "__self__", None), torch.Tensor)
    if not bound_to_tensor and torch.overrides.resolve_name(function) is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def traced_callable(function: Any, settings: Settings) -> Any:
    """Return the callable as one that is captured; the callable itself where it is not Python."""
    if isinstance(function, types.FunctionType):
        return TracedFunction(function, settings)
    if isinstance(function, types.MethodType):
        inner = traced_callable(function.__func__, settings)
        return function if inner is function.__func__ else types.MethodType(inner, function.__self__)
    if isinstance(function, functools.partial):
        return functools.partial(
            traced_callable(function.func, settings), *function.args, **function.keywords
        )
    kind = type(function)
    if isinstance(function, type | torch.jit.ScriptModule):
        return function
    if isinstance(function, torch.nn.Module) and kind.__call__ is torch.nn.Module.__call__:
        return traced_callable(
            types.MethodType(module_call_impl, function) if has_hooks(function) else function.forward,
            settings,
        )
    call = static_lookup(kind, "__call__")
    if not isinstance(call, types.FunctionType) or not is_python_class(kind):
        return function
    return types.MethodType(TracedFunction(call, settings), function)


def _is_tracing() -> bool:
    """Return whether this thread is capturing. Checked on torch 2.11 to 2.15."""
    return any(isinstance(mode, Recorder) for mode in current_function_modes())


def _forwarded(name: str) -> Callable[..., Any]:
    return lambda self, /, *args, **kwargs: getattr(type(self._inner), name)(self._inner, *args, **kwargs)


class TracedModule(torch.nn.Module):
    """Reads and writes of attributes go to the original; parameters have the names that they have there.

    A copy wraps a copy of the original, and shares the captured regions where their guards hold.
    """

    def __new__(cls, module: torch.nn.Module, settings: Settings) -> TracedModule:
        """Return one of a class with the special methods of the module's: `len`, subscripts, operators."""
        bases = [base for base in type(module).__mro__ if not issubclass(torch.nn.Module, base)]
        names = {name for base in bases for name in vars(base) if name.startswith("__")} - _NOT_FORWARDED
        methods = frozenset(name for name in names if callable(getattr(type(module), name)))
        made: TracedModule = super().__new__(_with_methods(cast(Any, cls), methods))
        made.__dict__["_kind"] = cls
        return made

    def __init__(self, module: torch.nn.Module, settings: Settings) -> None:
        super().__init__()
        del self.__dict__["training"]  # read from the original
        self._modules[ORIGINAL] = module
        self.__dict__["_settings"] = settings
        before_load_state_dict(self, _rename_keys)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = any(map(vars(self).get, HOOKS))  # hooks of all modules run for the original
        return super().__call__(*args, **kwargs) if own else self.forward(*args, **kwargs)

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        return traced_callable(self._inner, self._settings)(*args, **kwargs)

    @property
    def _inner(self) -> Any:
        return self.__dict__["_modules"][ORIGINAL]

    def __getattr__(self, name: str) -> Any:
        return self._inner if name == ORIGINAL else getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if ORIGINAL in self.__dict__.get("_modules", ()) and name not in self.__dict__:
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)

    named_modules = _forwarded("named_modules")
    state_dict = _forwarded("state_dict")
    load_state_dict = _forwarded("load_state_dict")
    __dir__ = _forwarded("__dir__")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._kind(copy.deepcopy(self._inner, memo), self._settings)

    def __reduce__(self) -> Any:
        return self._kind, (self._inner, self._settings)


_NOT_FORWARDED = frozenset(
    {*vars(TracedModule), "__class__", "__call__", "__class_getitem__", "__init_subclass__"}
)


@functools.cache
def _with_methods(kind: Any, names: frozenset[str]) -> Any:
    methods = {name: _forwarded(name) for name in names}
    return type(kind.__name__, (kind,), methods) if methods else kind


def _rename_keys(state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename the keys of a state dict that is loaded by a parent module: torch expects `ORIGINAL` in them."""
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}{ORIGINAL}.{key.removeprefix(prefix)}"] = state.pop(key)
