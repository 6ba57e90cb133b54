"""Run a computation in float64: the truth that eager and compiled results are measured by.

The run takes place where the tensors are. If it does not fit there, it takes place on the host, and a note
says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from torchrepro.judge.clone import (
    FLOAT64,
    FLOAT64_ON_CPU,
    Precision,
    clone_inputs,
    clone_module,
    precision_for,
)
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.execute import Run, named_state
from torchrepro.judge.op_forms import Draws, ReplayRandom
from torchrepro.judge.upcast import Upcast
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.generators import capture_rng_state, same_randomness


@dataclass(frozen=True, eq=False)
class Reference:
    """What the reference run returned, and how far it was from an ideal one."""

    value: Any
    notes: tuple[str, ...] = ()
    mutated: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """For a graph: inputs that it wrote to, by position, with their final values."""


def true_run(
    observe: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Run],
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    draws: Draws,
    keep: Collection[int] = (),
) -> tuple[Run, tuple[str, ...]]:
    """Run `observe` on float64 copies of a model and its inputs; return the run and notes on its limits.

    Parameters and inputs are leaves of their own, so that gradients accumulate in float64. Storages in `keep`
    that need not be widened are shared.
    """
    given = [tensor for _, tensor in tensors_in((args, dict(kwargs)))]
    if isinstance(model, torch.nn.Module):
        given += named_state(model).values()

    def run(precision: Precision) -> Reference:
        like: Any = {"dtype": precision.real, "device": precision.device}
        wide = model
        if isinstance(model, torch.nn.Module) and not is_stateless(model):
            wide = clone_module(model, **like)
        inputs, named = clone_inputs((args, dict(kwargs)), **like, keep=keep)
        return run_in_fp64(lambda: observe(wide, inputs, named), draws=draws, precision=precision)

    gradients = sum(wide_bytes([tensor]) for tensor in given if tensor.requires_grad)
    reference = _where_it_fits(run, given, wide_bytes(given) + gradients)
    return reference.value, reference.notes


def wide_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the memory that float64 copies of the narrower ones among these tensors take."""
    dtypes = [(tensor, FLOAT64.widened(tensor.dtype)) for tensor in tensors]
    return sum(tensor.numel() * wide.itemsize for tensor, wide in dtypes if wide is not tensor.dtype)


def _where_it_fits(
    run: Callable[[Precision], Reference], given: Sequence[torch.Tensor], needed: int
) -> Reference:
    """Run on the device of the given tensors, else on the host: it lacks float64, or the memory for it.

    `needed` is a lower bound in bytes. A run that has more than that, and is out of memory, is repeated.
    """
    devices = {tensor.device for tensor in given if tensor.device.type not in ("cpu", "meta")}
    precision, notes = precision_for({device.type for device in devices})
    free = min((bytes_free(device) for device in devices), default=needed)
    lacking = f"needs {needed >> 20} MiB, and {free >> 20} are free"
    if precision is not FLOAT64 or needed <= free:
        try:
            found = run(precision)
            return replace(found, notes=notes + found.notes)
        except torch.OutOfMemoryError:
            if not devices:
                raise
            lacking = "was out of memory"
    found = run(FLOAT64_ON_CPU)
    names = ", ".join(sorted({device.type for device in devices}))
    return replace(
        found, notes=(f"the float64 reference ran on the CPU: on {names} it {lacking}", *found.notes)
    )


def bytes_free(device: torch.device) -> int:
    """Return the memory that an allocation on an accelerator can get, what its allocator keeps included."""
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return sys.maxsize
    unused = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0] + unused)


def run_in_fp64(
    fn: Callable[[], Any], *, draws: Draws | None = None, precision: Precision = FLOAT64
) -> Reference:
    """Call `fn` so that everything in it happens in float64, backward passes included.

    `draws` are those that `RecordRandom` kept of the eager run. Raises `ReferenceUnavailable` where there is
    no such run. The random generators, the default dtype and all modes are afterwards as they were.
    """
    with _reference_run(draws, precision) as run:
        value = fn()
    return Reference(run.current_values(value), run.notes)


def run_graph_in_fp64(
    gm: GraphModule,
    inputs: Sequence[Any],
    *,
    draws: Draws | None = None,
    precision: Precision | None = None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Reference:
    """Run a graph without autograd. An input is widened for each op that reads it, and dropped after it.

    Neither the module nor the inputs are written to; what the graph writes to its inputs is in `mutated`.
    `around` is entered for the call.
    """
    given = [item.detach() if isinstance(item, torch.Tensor) else item for item in inputs]
    tensors = {i: item for i, item in enumerate(given) if isinstance(item, torch.Tensor)}
    outside = [*tensors.values(), *(tensor for _, tensor in tensors_in(list(_held_by(gm))))]

    def run_as(precision: Precision) -> Reference:
        with (
            _reference_run(draws, precision, autograd=False, outside=outside) as run,
            torch.no_grad(),
            around(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # about operands of two dtypes, which the user's graph has not
            value = gm(*given)
        wide = {i: run.known(tensor) for i, tensor in tensors.items()}
        mutated = {i: tensor for i, tensor in wide.items() if tensor is not None}
        return Reference(run.current_values(value), run.notes, mutated)

    if precision is not None:
        return run_as(precision)
    # The op that reads the largest tensor has a wide copy of it, and usually a result.
    return _where_it_fits(run_as, outside, 2 * max((wide_bytes([tensor]) for tensor in outside), default=0))


def _held_by(gm: torch.nn.Module) -> Iterator[Any]:
    """Yield what the graph and its modules hold: parameters, buffers, constants."""
    for module in gm.modules():
        yield from (*module.parameters(recurse=False), *module.buffers(recurse=False))
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def is_stateless(model: torch.nn.Module) -> bool:
    """Return whether a run changes nothing in a model: a graph of graphs that hold no tensors."""
    graphs = all(isinstance(module, GraphModule) for module in model.modules())
    return graphs and not any(True for _ in _held_by(model))


@contextmanager
def _reference_run(
    draws: Draws | None,
    precision: Precision,
    *,
    autograd: bool = True,
    outside: Iterable[torch.Tensor] = (),
) -> Iterator[Upcast]:
    """Set up a reference run for the body: modes, replay, generators put back, one kind of error."""
    replay = None if draws is None else ReplayRandom(draws)
    run = Upcast(precision, replay, autograd=autograd, outside=outside)
    try:
        with same_randomness(capture_rng_state()), without_compilers(), run:
            yield run
        if run.unavailable is not None:
            raise run.unavailable
        if replay is not None:
            replay.check_all_used()
    except (ReferenceUnavailable, torch.OutOfMemoryError):
        raise
    except Exception as exc:
        if run.unavailable is not None:
            raise run.unavailable from exc
        first = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
        raise ReferenceUnavailable(f"the float64 run raises {type(exc).__name__}: {first}") from exc


def without_compilers() -> AbstractContextManager[Any]:
    """Run what the model compiles by itself in eager, for the body: a reference never uses a compiler."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
