"""Run one model once, forward and optionally backward, and keep all effects that its user could see."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

import torch

from torchrepro.judge.clone import clone_inputs, clone_module, is_plain, window
from torchrepro.judge.compare import needs_grad, reduce_to_scalar_loss, tensors_in
from torchrepro.nouns.errors import message_of
from torchrepro.nouns.verdict import Kind, Raised, Stage, Verdict
from torchrepro.torch_api.generators import capture_rng_state
from torchrepro.torch_api.modules import compiled_call, compiled_module
from torchrepro.torch_api.names import DYNAMO_ERRORS, INDUCTOR_ERRORS
from torchrepro.torch_api.tensors import storage_identity, storage_number, version_of


@dataclass(frozen=True, eq=False)
class Run:
    """What one run left behind: results, gradients, and everything that it may have changed."""

    outputs: Any
    gradients: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    """By parameter name and, for inputs, by their path; None where nothing flowed back."""
    inputs: Any = ()
    """The inputs after the call, mutations included."""
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Parameters and buffers after the call, by name."""
    changed: frozenset[str] = frozenset()
    """Names in `state` that the call wrote to."""
    python: Mapping[str, Any] = field(default_factory=dict)
    """Plain Python state after the call, where the caller looked at it (`state/snapshot.py`)."""
    rng: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The generators' states after the call."""


def run_fwd_maybe_bwd(
    gm: Callable[..., Any],
    args: Sequence[Any],
    only_fwd: bool = False,
    disable_clone: bool = False,
    *,
    kwargs: Mapping[str, Any] | None = None,
    around: AbstractContextManager[Any] | None = None,
) -> Run:
    """Run `gm` on clones of its inputs; if an output needs gradients, run backward as well.

    The caller's module and inputs are left as they were: the module is copied or, where it is compiled and a
    copy would compile again, put back afterwards. `disable_clone` runs on the originals.
    `around` is entered for the call alone, not for the copying.
    """
    kwargs = dict(kwargs or {})
    guard: Any = nullcontext()
    if not disable_clone:
        args, kwargs = clone_inputs((tuple(args), kwargs))
        if isinstance(gm, torch.nn.Module):
            if compiled_module(gm) is not None or compiled_call(gm) is not None:
                guard = _put_back_afterwards(gm)
            else:
                gm = clone_module(gm)
    with guard, around or nullcontext():
        run = observe_call(gm, tuple(args), kwargs, only_fwd=only_fwd)
        if isinstance(guard, nullcontext):
            return run
        # The model's state is about to be put back.
        state = {name: tensor.detach().clone() for name, tensor in run.state.items() if name in run.changed}
        return replace(run, state=state)


def observe_call(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    only_fwd: bool = False,
    state: Mapping[str, torch.Tensor] | None = None,
) -> Run:
    """Make one call on the given objects themselves, which it may change.

    `state` names the tensors that belong to the model where `call` does not show them (a compiled function).
    """
    if state is None:
        state = named_state(call) if isinstance(call, torch.nn.Module) else {}
    inputs = dict([*tensors_in(args, "inputs"), *tensors_in(dict(kwargs), "inputs")])
    wanting = {**inputs, **state} if not only_fwd else {}
    wanting = {name: tensor for name, tensor in wanting.items() if tensor.requires_grad}
    for tensor in wanting.values():
        tensor.grad = None
        if not tensor.is_leaf:
            tensor.retain_grad()
    versions = {name: version_of(tensor) for name, tensor in state.items()}

    outputs = call_as_it_asks(call, args, kwargs)
    if not only_fwd and needs_grad(outputs):
        reduce_to_scalar_loss(outputs).backward()

    return Run(
        outputs=outputs,
        gradients={name: tensor.grad for name, tensor in wanting.items()},
        inputs=(args, dict(kwargs)) if kwargs else args,
        state=state,
        changed=frozenset(name for name, tensor in state.items() if version_of(tensor) != versions[name]),
        rng=capture_rng_state().devices,
    )


def call_as_it_asks(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call with the arguments, or with one list of them where the callable is boxed."""
    if is_boxed(call):
        return call(list(args), **kwargs)
    return call(*args, **kwargs)


def is_boxed(call: Callable[..., Any]) -> bool:
    """Return whether a callable takes one list of arguments.

    Its flag alone is not enough: AOT's backends return an unboxed function to which `functools.wraps` has
    copied the flag of the boxed one inside (and the existing tool then reports correct models as broken). A
    boxed function takes one argument; one that takes `*args` is not boxed.
    """
    if not getattr(call, "_boxed_call", False):
        return False
    code = getattr(call, "__code__", None)
    return code is None or not (code.co_flags & inspect.CO_VARARGS)


def named_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their names in the user's module, not in a compiled wrapper."""
    inner = compiled_module(module)
    inner = module if inner is None else inner
    return {**dict(inner.named_parameters()), **dict(inner.named_buffers())}


@contextmanager
def _put_back_afterwards(module: torch.nn.Module) -> Iterator[None]:
    """Restore values, gradients and training flags of a module after the body."""
    state = named_state(module)
    values = {name: tensor.detach().clone() for name, tensor in state.items()}
    gradients = {name: tensor.grad for name, tensor in state.items() if tensor.is_leaf}
    training = [(child, child.training) for child in module.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(values[name])
                if name in gradients:
                    tensor.grad = gradients[name]
        for child, flag in training:
            child.training = flag


# Directories of torch, and the stage whose code lives there. `_inductor/compile_fx.py` calls AOT, which calls
# `compile_fx_inner` in the same file: the innermost frame that is listed here determines the stage.
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
    # The same for our front end: what calls the backend, what runs regions and user code, and the rest.
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
    kind, message = _of_compile_worker(inner) or (type(inner).__name__, message_of(inner))
    return Raised(kind, message, traceback="".join(traceback.format_exception(exc)))


def _of_compile_worker(exc: BaseException) -> tuple[str, str] | None:
    """Return the type and message of an exception in a process of inductor's pool; None for any other.

    It comes as the text of its traceback, in a `SubprocException` (torch 2.11 to 2.15). Candidates compile in
    their own process, where the exception itself is raised.
    """
    details = getattr(exc, "details", None)
    if type(exc).__name__ != "SubprocException" or not isinstance(details, str):
        return None
    lines = details.splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] + 1 :] if frames else lines
    said = "\n".join(dropwhile(lambda line: not line or line[0].isspace(), after))
    kind, _, message = said.partition(":")
    return kind.strip().rpartition(".")[2], message.strip()


def verdict_of(exc: BaseException, *, compiling: bool | None = None) -> Verdict:
    """Return the verdict on the compiled side's exception; without `compiling`, its frames give the phase."""
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
    # Dynamo raises some of its exceptions without their frames; the innermost type still gives the stage.
    for module, stage in ((INDUCTOR_ERRORS, Stage.BACKEND), (DYNAMO_ERRORS, Stage.CAPTURE)):
        if type(innermost(exc)).__module__ == module:
            return stage
    return Stage.NONE


def is_out_of_memory(exc: BaseException) -> bool:
    inner = innermost(exc)
    if isinstance(inner, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not isinstance(inner, RuntimeError):
        return False
    return any(word in message_of(inner).lower() for word in _MEMORY_PHRASES)


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
    """Yield `file:function` of the frames, innermost first, of the exception and of those that caused it."""
    chain: list[BaseException] = []
    current: BaseException | None = exc
    while current is not None and current not in chain and len(chain) < 20:
        chain.append(current)
        inner = getattr(current, "inner_exception", None)
        current = inner if isinstance(inner, BaseException) else current.__cause__
    for link in reversed(chain):
        for frame, _ in reversed(list(traceback.walk_tb(link.__traceback__))):
            yield f"{frame.f_code.co_filename}:{frame.f_code.co_name}".replace("\\", "/")


# Large storages that a computation only reads, which its runs share instead of copying them. Compiled code
# may write where it must not, and torch's version counters do not see what a kernel of Triton or C++ writes:
# a fingerprint of the bytes does.

LARGE = 1 << 20
"""Bytes from which a fingerprint is cheaper than a copy."""
_WIDTH = 4096

Storages = Mapping[int, torch.UntypedStorage]
"""Storages by their number."""


def storages_only_read(inputs: Sequence[Any], written: Collection[int]) -> Storages:
    """Return the large storages of plain tensors among the inputs and their gradients.

    `written` are the positions of the inputs that are written to. Their memory is left out, and so is memory
    that an exotic tensor is made of.
    """
    only_read: dict[int, torch.UntypedStorage] = {}
    excluded: set[tuple[str, int]] = set()
    for position, value in enumerate(inputs):
        for _, tensor in tensors_in(value):
            for each in (tensor, tensor.grad if tensor.is_leaf else None):
                if each is None:
                    continue
                if not is_plain(each):
                    return {}
                if position in written:
                    excluded.add(storage_identity(each))
                elif each.untyped_storage().nbytes() >= LARGE and not each.is_meta:
                    only_read[storage_number(each.untyped_storage())] = each.untyped_storage()
    addresses = {address for _, address in excluded}
    return {number: each for number, each in only_read.items() if each.data_ptr() not in addresses}


def fingerprints(storages: Iterable[torch.UntypedStorage]) -> list[torch.Tensor]:
    """Return for each storage the sums of the rows and columns of its words, modulo 2**64, and what is left.

    One word that changes, or two that change places, change a row or a column.
    """
    return [_fingerprint(storage) for storage in storages]


def _fingerprint(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.no_grad():
        words = window(storage, torch.int64)
        table = words[: len(words) // _WIDTH * _WIDTH].view(-1, _WIDTH)
        rest = window(storage, torch.uint8)[table.numel() * 8 :]
        return torch.cat([table.sum(0), table.sum(1), rest.to(torch.int64)])


def changed_storages(storages: Storages, before: Sequence[torch.Tensor]) -> set[int]:
    """Return the numbers of the storages that no longer have the fingerprints of before."""
    equal = [(old == _fingerprint(each)).all() for old, each in zip(before, storages.values(), strict=True)]
    # All are computed before the first is read, which waits for the device.
    return {number for number, flag in zip(storages, equal, strict=True) if not flag}
