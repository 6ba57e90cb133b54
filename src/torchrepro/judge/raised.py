"""Read an exception: what was really raised, while compiling or while running, and at which stage."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType

import torch

from torchrepro.nouns.verdict import Kind, Raised, Stage, Verdict
from torchrepro.torch_api.names import DYNAMO_ERRORS, INDUCTOR_ERRORS

# Directories of torch, and the stage whose code lives there. `_inductor/compile_fx.py` calls AOT, which calls
# `compile_fx_inner` in the same file: the innermost frame that is listed here tells the stage.
_STAGES: tuple[tuple[str, Stage], ...] = (
    ("/torch/_dynamo/backends/", Stage.NONE),
    ("/torch/_dynamo/repro/", Stage.NONE),
    # Wrappers around every compiled and every uncompiled call, whichever stage is inside.
    ("/torch/_dynamo/eval_frame", Stage.NONE),
    ("/torch/_dynamo/external_utils", Stage.NONE),
    ("/torch/_dynamo/utils", Stage.NONE),
    ("/torch/fx/experimental/proxy_tensor.py:maybe_handle_decomp", Stage.DECOMPOSITION),
    ("/torch/_inductor/decomposition", Stage.DECOMPOSITION),
    ("/torch/_inductor/", Stage.BACKEND),
    ("/torch/_decomp/", Stage.DECOMPOSITION),
    ("/torch/_refs/", Stage.DECOMPOSITION),
    ("/torch/_functorch/", Stage.AOT),
    ("/torch/_dynamo/", Stage.CAPTURE),
    # The same of our own front end: what calls the backend, what runs regions and user code, and the rest.
    ("/torchrepro/frontend/runtime/capture.py:compile_and_call_fx_graph", Stage.BACKEND),
    ("/torchrepro/frontend/runtime/capture", Stage.CAPTURE),
    ("/torchrepro/frontend/runtime/", Stage.NONE),
    ("/torchrepro/frontend/bytecode/resume", Stage.NONE),
    ("/torchrepro/frontend/", Stage.CAPTURE),
)
# Frames of generated kernels and of the wrapper that calls them: code of the backend, at run time.
_GENERATED = ("torchinductor", "/inductor/", "inductor_cache")

_COMPILING = (
    "/torch/_dynamo/convert_frame",
    "/torch/_inductor/compile_fx",
    "/torchrepro/frontend/runtime/capture",
)

_MEMORY_PHRASES = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")


def describe(exc: BaseException) -> Raised:
    """Return the exception as text, the compilers' own wrappers taken off."""
    inner = innermost(exc)
    return Raised(
        type=type(inner).__name__,
        message=str(inner),
        traceback="".join(traceback.format_exception(exc)),
    )


def verdict_of(exc: BaseException, *, compiling: bool | None = None) -> Verdict:
    """The verdict for an exception of the compiled side; without `compiling`, its frames tell the phase."""
    raised = describe(exc)
    stage = stage_of(exc)
    if is_out_of_memory(exc):
        kind = Kind.OUT_OF_MEMORY
    elif compiling if compiling is not None else _while_compiling(exc):
        kind = Kind.COMPILE_ERROR
    else:
        kind = Kind.RUN_ERROR
    if kind is Kind.RUN_ERROR and stage is Stage.NONE:
        stage = Stage.BACKEND
    return Verdict(kind, stage, summary=str(raised), raised=raised)


def innermost(exc: BaseException) -> BaseException:
    """Return the exception inside `BackendCompilerFailed`, `InductorError` and the like.

    Checked on torch 2.11 to 2.15 (`inner_exception`).
    """
    for _ in range(10):
        inner = getattr(exc, "inner_exception", None)
        if not isinstance(inner, BaseException):
            return exc
        exc = inner
    return exc


def stage_of(exc: BaseException) -> Stage:
    """Return the stage whose code the exception came from, by the innermost frame that belongs to one."""
    for place in _frames(exc):
        for directory, stage in _STAGES:
            if directory in place:
                if stage is not Stage.NONE:
                    return stage
                break
    # Dynamo raises some of its exceptions without their frames; the innermost type still tells whose it is.
    for module, stage in ((INDUCTOR_ERRORS, Stage.BACKEND), (DYNAMO_ERRORS, Stage.CAPTURE)):
        if type(innermost(exc)).__module__ == module:
            return stage
    return Stage.NONE


def is_out_of_memory(exc: BaseException) -> bool:
    inner = innermost(exc)
    if isinstance(inner, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(inner, RuntimeError) and any(word in str(inner).lower() for word in _MEMORY_PHRASES)


def _while_compiling(exc: BaseException) -> bool:
    if type(exc).__module__.startswith((DYNAMO_ERRORS, INDUCTOR_ERRORS)):
        return True
    for place in _frames(exc):
        if any(mark in place for mark in _GENERATED):
            return False
        if any(mark in place for mark in _COMPILING):
            return True
    return False


def _frames(exc: BaseException) -> Iterator[str]:
    """`file:function` of the frames, innermost first, of the exception and of those that caused it."""
    chain: list[BaseException] = []
    current: BaseException | None = exc
    while current is not None and current not in chain and len(chain) < 20:
        chain.append(current)
        inner = getattr(current, "inner_exception", None)
        current = inner if isinstance(inner, BaseException) else current.__cause__
    for link in reversed(chain):
        yield from reversed(list(_places(link.__traceback__)))


def _places(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        code = trace.tb_frame.f_code
        yield f"{code.co_filename}:{code.co_name}".replace("\\", "/")
        trace = trace.tb_next
