"""What was compiled: the user's function behind something that `torch.compile` made, and its compiler."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.execute.backends import compiler_of
from torchrepro.nouns.repro import Ambient, Compiler, Repro
from torchrepro.torch_api.modules import compiled_call, compiled_function, compiled_module, dynamic_of
from torchrepro.torch_api.names import AUTOGRAD_GRAPH, COMPILED_CALL, ENGINE_CALL, EVAL_FRAME
from torchrepro.torch_api.patching import closed_over


@dataclass(frozen=True, eq=False)
class CompiledTarget:
    """A compiled function, and its compiler."""

    function: Callable[..., Any]
    """The uncompiled function, to be called with the same arguments."""
    compiler: Compiler
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any], context: Any) -> CompiledTarget:
        """Return the target from the argument of `torch.compile` and the context that it made.

        Checked on torch 2.11 to 2.15 (`_TorchDynamoContext.callback`, `fullgraph`, `_dynamic`).
        """
        compiler, notes = compiler_of(context.callback)
        asked = replace(compiler, fullgraph=context.fullgraph, dynamic=dynamic_of(context))
        return cls(function, asked, notes)

    @property
    def users(self) -> Callable[..., Any]:
        """The user's own function or module: what a user would pass to `torch.compile`.

        Checked on torch 2.11 to 2.15 (`wrap_inline`).
        """
        function: Any = self.function
        code = getattr(function, "__code__", None)
        if code is not None and code.co_filename.endswith("external_utils.py"):
            function = getattr(function, "__wrapped__", function)  # capture wrapped it
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module) and function.__name__ in ("_call_impl", "_wrapped_call_impl"):
            return owner
        return function  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        users = self.users
        named = users if hasattr(users, "__qualname__") else type(users)
        return f"{named.__module__}.{named.__qualname__}"


def target_of(model: Any) -> CompiledTarget | None:
    """Return what a compiled module, function or method was made from; None if it is not compiled.

    Checked on torch 2.11 to 2.15 (`_torchdynamo_orig_callable`, `get_compiler_config`, `_orig_mod`,
    `_compiled_call_impl`).
    """
    if isinstance(model, torch.nn.Module):
        original = compiled_module(model)
        if original is not None:
            return CompiledTarget.of(original, model.dynamo_ctx)
        inner = target_of(compiled_call(model))
        return None if inner is None else replace(inner, function=model)
    function = compiled_function(model)
    # The context is only reachable through the closure of this function.
    context = closed_over(getattr(model, "get_compiler_config", None), "self")
    if function is None or context is None:
        return None
    if isinstance(model, types.MethodType):
        function = types.MethodType(function, model.__self__)
    found = CompiledTarget.of(function, context)
    return replace(found, function=found.users)


@dataclass(frozen=True, eq=False)
class EnclosingCall:
    """A call of a compiled function that is under way."""

    target: CompiledTarget
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    runs_backward: bool = False
    """Whether autograd is at work in it: gradients are off there, but were not when it began."""

    def repro(self, ambient: Ambient) -> Repro:
        """Return the call as a repro, with its arguments as they are now."""
        target = self.target
        ambient = replace(ambient, grad_enabled=True) if self.runs_backward else ambient
        found = repro_of_call(target.users, self.args, self.kwargs, compiler=target.compiler, ambient=ambient)
        return replace(found, notes=(*found.notes, *target.notes))


def enclosing_calls() -> Iterator[EnclosingCall]:
    """Yield the compiled calls that are under way in this thread, found on its stack, the innermost first.

    Checked on torch 2.11 to 2.15 (`compile_wrapper` with `fn`, `self`, `args` and `kwargs`,
    `_engine_run_backward`).
    """
    frame: types.FrameType | None = sys._getframe()
    runs_backward = False
    while frame is not None:
        names = frame.f_code.co_name, frame.f_globals.get("__name__")
        runs_backward |= names == (ENGINE_CALL, AUTOGRAD_GRAPH)
        if names == (COMPILED_CALL, EVAL_FRAME):
            found = frame.f_locals
            target = CompiledTarget.of(found["fn"], found["self"])
            yield EnclosingCall(target, tuple(found["args"]), dict(found["kwargs"]), runs_backward)
        frame = frame.f_back
