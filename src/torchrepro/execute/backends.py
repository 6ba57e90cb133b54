"""The backends of `torch.compile`: the ladder of torch's own, and the compiler behind a backend object.

Each rung of the ladder does what the one before it does, and one thing more. None of them calls a C++
compiler, so queries to them are cheap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from torchrepro.execute.compilers import imported, known_compilers
from torchrepro.nouns.repro import Compiler, Place, Repro
from torchrepro.nouns.verdict import Stage
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.modules import backend_as_made, wrapped_backend
from torchrepro.user_code.closure import is_installed_module

WATCHES = "_torchrepro_watches"
"""Marks a backend of ours, which does its own watching."""


@dataclass(frozen=True, slots=True)
class Step:
    """A backend, and the stage that it adds to those before it."""

    backend: str
    stage: Stage
    words: str


LADDER = (
    Step("eager", Stage.CAPTURE, "capture"),
    Step("aot_eager", Stage.AOT, "AOT autograd"),
    Step("aot_eager_decomp_partition", Stage.DECOMPOSITION, "the decompositions"),
)

# What else torch registers for debugging, by the last stage that it goes through.
_AKIN = {
    "eager_noexcept": Stage.CAPTURE,
    "pre_dispatch_eager": Stage.CAPTURE,
    "eager_debug": Stage.CAPTURE,
    "aot_eager_default_partitioner": Stage.AOT,
    "aot_eager_decomp_partition_with_mode": Stage.DECOMPOSITION,
    "aot_eager_decomp_partition_crossref": Stage.DECOMPOSITION,
}


def last_stage_of(backend: str) -> Stage:
    """Return the last stage that a compiler goes through."""
    known = {step.backend: step.stage for step in LADDER}
    return known.get(backend) or _AKIN.get(backend, Stage.BACKEND)


def with_backend(repro: Repro, backend: str) -> Repro:
    """Return the repro with another backend, which has neither the mode nor the options of its compiler."""
    return replace(repro, compiler=replace(repro.compiler, name=backend, mode=None, options={}))


def simpler_backends(repro: Repro) -> list[tuple[Step, Repro]]:
    """Return the backends that do less than the compiler under test, each with the repro on it.

    After AOT, the first two have nothing left to do.
    """
    own = last_stage_of(repro.compiler.name)
    stages = [step.stage for step in LADDER]
    below = LADDER[: stages.index(own)] if own in stages else LADDER
    if repro.place is Place.AFTER_AOT:
        below = tuple(step for step in below if step.stage is Stage.DECOMPOSITION)
    return [(step, with_backend(repro, step.backend)) for step in below]


def culprit_step(fails: Sequence[bool | None]) -> int | None:
    """Return the index at which the failure begins, of answers from the simplest backend to the last.

    The ladder is not monotone: one backend may differ by accident while the compiler under test agrees, and
    the kind of failure may change on the way up (an error under `aot_eager`, a crash of the kernel made from
    the same wrong graph). So the culprit is where the unbroken run of failing backends begins that ends at
    the compiler under test. None among the answers means unknown; None is returned if the last one passes.
    """
    found = None
    for place in reversed(range(len(fails))):
        if fails[place]:
            found = place
        elif fails[place] is not None:
            break
    return found if fails and fails[-1] else None


def compiler_of(backend: Any) -> tuple[Compiler, tuple[str, ...]]:
    """Return the compiler that a backend object stands for, and notes on what could not be kept of it.

    Checked on torch 2.11 to 2.15 (`_TorchCompileInductorWrapper.config`, `_TorchCompileWrapper.kwargs`,
    `_torchdynamo_orig_backend`, `DDPOptimizer.backend_compile_fn`).
    """
    users, backend, notes = _unwrapped(backend)
    dynamic = getattr(backend, "dynamic", None)
    if isinstance(getattr(backend, "compiler", None), Compiler):  # watching: names its compiler
        return backend.compiler, notes
    if isinstance(backend, dynamo.InductorWrapper):
        return Compiler("inductor", options=dict(backend.config), dynamic=dynamic), notes
    if isinstance(backend, dynamo.BackendWrapper):
        named, more = compiler_of(backend.compiler_fn)
        options, mode = dict(backend.kwargs.get("options") or {}), backend.kwargs.get("mode")
        known = isinstance(backend.compiler_name, str) and backend.compiler_name in known_compilers()
        if known and named.function is None:
            named = Compiler(backend.compiler_name)
        return replace(named, mode=mode, options=options, dynamic=dynamic), (*notes, *more)
    if isinstance(backend, str):
        return Compiler(backend, function=function_to_keep(backend)), notes
    name, users = _name_of(backend), backend_as_made(users)
    return Compiler(name, function=users if ":" in name and not _is_found(name, users) else None), notes


def function_to_keep(name: str) -> Callable[..., Any] | None:
    """Return the function that `module:function` names in a file of the user; None for other compilers.

    A compiler that has its function goes into bundles and scripts as source, which run without the file.
    """
    function = imported(name) if ":" in name else None
    return None if function is None or _is_found(name, function) else function


def watches_itself(backend: Any) -> bool:
    """Return whether a backend is one of ours, which does its own watching."""
    _, backend, _ = _unwrapped(backend)
    inner = getattr(backend, "compiler_fn", None) if isinstance(backend, dynamo.BackendWrapper) else backend
    return bool(getattr(_unwrapped(inner)[1], WATCHES, False))


def _unwrapped(backend: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Return a backend out of the wrappers of torch and DDP, the function in its partials, and notes."""
    notes: tuple[str, ...] = ()
    users = None
    for _ in range(20):
        owner: Any = getattr(backend, "__self__", None)
        if hasattr(owner, "backend_compile_fn"):
            backend = owner.backend_compile_fn
            notes = ("compiled in parts, by DDP's buckets; the replay compiles the graph as a whole",)
        elif (inner := wrapped_backend(backend)) is not None:
            backend = inner
        elif isinstance(backend, functools.partial):
            users = users or backend
            backend = backend.func
        else:
            break
    return users or backend, backend, notes


def _name_of(backend: Callable[..., Any]) -> str:
    """Return a name that torch or a package registers, else `package.module:function`."""
    for name in known_compilers():
        if dynamo.registered_backends.get(name) is backend and is_installed_module(_home(backend)):
            return name
    qualified = getattr(backend, "__qualname__", None) or type(backend).__qualname__
    return f"{_home(backend)}:{qualified}"


def _home(backend: Callable[..., Any]) -> str:
    return getattr(backend, "__module__", None) or type(backend).__module__


def _is_found(name: str, backend: Any) -> bool:
    """Return whether an import in any process finds this very object: it is a package's own."""
    if not is_installed_module(name.partition(":")[0]):
        return False
    try:
        return resolve_name(name) is backend
    except (ImportError, AttributeError, ValueError):
        return False
