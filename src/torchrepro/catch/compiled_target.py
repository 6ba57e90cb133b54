"""Target: what stands inside a compiled object, and the compiler that it was compiled with."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.execute.backends import compiler_of
from torchrepro.nouns.repro import Compiler


@dataclass(frozen=True, eq=False)
class Target:
    """What was compiled, and how."""

    function: Callable[..., Any]
    """What plain Python calls with the same arguments."""
    compiler: Compiler
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any], context: Any) -> Target:
        """From what `torch.compile` was given and the context that it made.

        Checked on torch 2.11 to 2.15 (`_TorchDynamoContext.callback`, `fullgraph`, `_dynamic`).
        """
        compiler, notes = compiler_of(context.callback)
        return cls(function, replace(compiler, fullgraph=context.fullgraph, dynamic=context._dynamic), notes)

    @property
    def users(self) -> Callable[..., Any]:
        """The user's own function or module: what a person would hand to `torch.compile`."""
        function: Any = self.function
        if _is_inlined(function):
            function = getattr(function, "__wrapped__", function)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module) and function.__name__ in ("_call_impl", "_wrapped_call_impl"):
            return owner
        return function  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        users = self.users
        named = users if hasattr(users, "__qualname__") else type(users)
        return f"{named.__module__}.{named.__qualname__}"


def target_of(model: Any) -> Target | None:
    """What stands inside a compiled module, function or method; None if it is not compiled.

    Checked on torch 2.11 to 2.15 (`_torchdynamo_orig_callable`, `get_compiler_config`, `_orig_mod`,
    `_compiled_call_impl`).
    """
    if isinstance(model, torch.nn.Module):
        original: Any = getattr(model, "_orig_mod", None)
        if original is not None:
            return Target.of(original, model.dynamo_ctx)
        inner = target_of(model._compiled_call_impl)
        return None if inner is None else replace(inner, function=model)
    function = getattr(model, "_torchdynamo_orig_callable", None)
    # The context is known to the compiled function alone; this little function of it is closed over it.
    context = _free_variable(getattr(model, "get_compiler_config", None), "self")
    if function is None or context is None:
        return None
    if isinstance(model, types.MethodType):
        function = types.MethodType(function, model.__self__)
    found = Target.of(function, context)
    return replace(found, function=found.users)


def _free_variable(function: Any, name: str) -> Any:
    if not isinstance(function, types.FunctionType) or name not in function.__code__.co_freevars:
        return None
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents


def _is_inlined(function: Any) -> bool:
    """Whether capture put a frame of its own around it. Checked on torch 2.11 to 2.15 (`wrap_inline`)."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.endswith("external_utils.py")
