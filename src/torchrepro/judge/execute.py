"""Run one model once, forward and where wanted backward, and keep all that its user could see of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchrepro.judge.clone import clone_inputs, clone_module
from torchrepro.judge.leaves import reduce_to_scalar_loss, tensors_in
from torchrepro.torch_api.generators import capture_rng_state


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
            if _is_compiled(gm):
                guard = _put_back_afterwards(gm)
            else:
                gm = clone_module(gm)
    with guard, around or nullcontext():
        run = observe_call(gm, tuple(args), kwargs, only_fwd=only_fwd)
        return run if isinstance(guard, nullcontext) else _keep_apart(run)


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
    versions = {name: _version(tensor) for name, tensor in state.items()}

    outputs = call_as_it_asks(call, args, kwargs)
    if not only_fwd and any(tensor.requires_grad for _, tensor in tensors_in(outputs)):
        reduce_to_scalar_loss(outputs).backward()

    return Run(
        outputs=outputs,
        gradients={name: tensor.grad for name, tensor in wanting.items()},
        inputs=(args, dict(kwargs)) if kwargs else args,
        state=state,
        changed=frozenset(name for name, tensor in state.items() if _version(tensor) != versions[name]),
        rng=capture_rng_state().devices,
    )


def call_as_it_asks(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call with the arguments, or with one list of them where the callable is boxed."""
    if is_boxed(call):
        return call(list(args), **kwargs)
    return call(*args, **kwargs)


def is_boxed(call: Callable[..., Any]) -> bool:
    """Return whether a callable takes one list of arguments.

    Its flag alone does not tell: AOT's backends return an unboxed function to which `functools.wraps` has
    copied the flag of the boxed one inside (and the existing tool then finds healthy models broken). What is
    boxed takes one argument; what takes `*args` is not.
    """
    if not getattr(call, "_boxed_call", False):
        return False
    code = getattr(call, "__code__", None)
    return code is None or not (code.co_flags & inspect.CO_VARARGS)


def named_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by the names that the user knows."""
    inner = getattr(module, "_orig_mod", module)
    return {**dict(inner.named_parameters()), **dict(inner.named_buffers())}


def _is_compiled(module: torch.nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _version(tensor: torch.Tensor) -> int:
    """Return how often the tensor was written to; inference tensors do not count that and look unchanged."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def _put_back_afterwards(module: torch.nn.Module) -> Iterator[None]:
    """Values, gradients and training flags of a module as they were before the body."""
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


def _keep_apart(run: Run) -> Run:
    """Return the run with copies of the model's state, which is about to be put back."""
    state = {name: tensor.detach().clone() for name, tensor in run.state.items() if name in run.changed}
    return replace(run, state=state)
