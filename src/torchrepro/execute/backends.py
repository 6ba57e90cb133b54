"""The backends of `torch.compile`: the ladder of torch's own, and the compiler behind a backend object.

Each rung of the ladder does what the one before it does, and one thing more. None of them calls a C++
compiler, so queries to them are cheap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchrepro.execute.compilers import known_compilers
from torchrepro.nouns.repro import Compiler, Place, Repro, is_data
from torchrepro.nouns.verdict import Stage
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.modules import wrapped_backend

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
    backend, notes = _unwrapped(backend)
    dynamic = getattr(backend, "dynamic", None)
    if isinstance(getattr(backend, "compiler", None), Compiler):  # watching: names its compiler
        return backend.compiler, notes
    if isinstance(backend, dynamo.InductorWrapper):
        options, left_out = _data(backend.config)
        return Compiler("inductor", options=options, dynamic=dynamic), (*notes, *left_out)
    if isinstance(backend, dynamo.BackendWrapper):
        named, more = compiler_of(backend.compiler_fn)
        options, left_out = _data(backend.kwargs.get("options") or {})
        mode = backend.kwargs.get("mode")
        known = isinstance(backend.compiler_name, str) and backend.compiler_name in known_compilers()
        name = backend.compiler_name if known else named.name
        return Compiler(name, mode=mode, options=options, dynamic=dynamic), (*notes, *more, *left_out)
    if isinstance(backend, str):
        return Compiler(backend), notes
    return Compiler(_name_of(backend)), notes


def watches_itself(backend: Any) -> bool:
    """Return whether a backend is one of ours, which does its own watching."""
    backend, _ = _unwrapped(backend)
    inner = getattr(backend, "compiler_fn", None) if isinstance(backend, dynamo.BackendWrapper) else backend
    return bool(getattr(_unwrapped(inner)[0], WATCHES, False))


def _unwrapped(backend: Any) -> tuple[Any, tuple[str, ...]]:
    """Return what stands inside the wrappers that torch, DDP or a partial put around a backend."""
    notes: tuple[str, ...] = ()
    for _ in range(20):
        owner: Any = getattr(backend, "__self__", None)
        if hasattr(owner, "backend_compile_fn"):
            backend = owner.backend_compile_fn
            notes = ("compiled in parts, by DDP's buckets; the replay compiles the graph as a whole",)
        elif (inner := wrapped_backend(backend)) is not None:
            backend = inner
        elif isinstance(backend, functools.partial):
            backend = backend.func
        else:
            break
    return backend, notes


def _name_of(backend: Callable[..., Any]) -> str:
    """Return a registered name, else `package.module:function`."""
    for name in known_compilers():
        if dynamo.registered_backends.get(name) is backend:
            return name
    qualified = getattr(backend, "__qualname__", None) or type(backend).__qualname__
    return f"{getattr(backend, '__module__', None) or type(backend).__module__}:{qualified}"


def _data(options: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    kept = {name: value for name, value in options.items() if is_data(value)}
    notes = tuple(f"the option {name} is not data and was left out" for name in options if name not in kept)
    return kept, notes
