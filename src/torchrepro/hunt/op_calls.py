"""The ops that an eager run calls: what each reads, and on which of them each of its results depends.

Ops are those that reach the dispatcher, backward included, however the graph spells them. What a result
depends on is followed from storage to storage, so an op that writes through a view is seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.execute.judge_repro import repro_common
from torchrepro.execute.torch_comparisons import tensors_of
from torchrepro.judge.clone import has_its_own_dispatch
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.execute import Run
from torchrepro.judge.op_forms import run_plainly, written_or_returned
from torchrepro.judge.upcast import plan_of
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_settings
from torchrepro.state.fake_run import Decompositions
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.modes import DisableTorchFunction, TorchDispatchMode, disable_current_modes
from torchrepro.torch_api.ops import HigherOrderOperator, op_name
from torchrepro.torch_api.tensors import storage_identity, version_of

_BYTES_KEPT = 1 << 28
_COPIES = ("clone", "copy", "lift_fresh", "alias")
"""Ops that compute nothing, next to views: no failure is theirs."""
_SHAPES = ("empty_like", "ones_like", "zeros_like", "full_like", "rand_like", "randn_like")
"""Ops that read no element of their operand."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor as an op read it."""

    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    value: torch.Tensor | None
    """A copy; None where it was too large to keep."""
    input: int | None
    """The number of the input that it is, as it was given; None: it was computed."""
    uniform: float | None = None
    """The finite number throughout it, if it was computed from none of the inputs."""


@dataclass(frozen=True, eq=False)
class OpCall:
    """One call of an op."""

    op: str
    operands: tuple[Operand, ...]
    arguments: str
    """What is not a tensor among the arguments, as text."""
    depends: frozenset[int]
    """The numbers of the earlier calls on which it depends."""
    computes: bool
    """Whether it computes something from the program's inputs."""


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of a run in order, and for each result the numbers of those on which it depends."""

    calls: tuple[OpCall, ...]
    results: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By path (`out[0]`); empty where eager raised."""
    run: Run | None = None


def calls_of(repro: Repro, decompositions: Decompositions | None = None) -> Calls | None:
    """Run a repro eagerly in this process; None for a whole call of the user's code, which is no graph.

    An op that has a decomposition is run, and recorded, as the ops that it is made of.
    """
    if repro.place is Place.BEFORE_CAPTURE:
        return None
    prepared = repro_common(repro)
    graph, inputs = prepared.graph(), prepared.inputs()
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    recorder = _Recorder(inputs, decompositions or {})
    with applied_settings(repro.ambient), same_randomness(start):
        try:
            with recorder:
                run = prepared.observe(graph, graph, inputs)
        except Exception:  # the program's own error is what some failures are about
            return Calls(tuple(recorder.calls))
    results = {path: recorder.depends_on(tensor) for path, tensor in tensors_of(run).items()}
    return Calls(tuple(recorder.calls), results, run)


class _Recorder(TorchDispatchMode):
    """Records each op that is dispatched while it is active."""

    supports_higher_order_operators = True

    def __init__(self, inputs: Sequence[Any], decompositions: Decompositions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OpCall] = []
        self._decompositions = decompositions
        self._inputs = {
            id(tensor): (number, tensor, version_of(tensor))
            for number, tensor in enumerate(inputs)
            if isinstance(tensor, torch.Tensor)
        }
        self._storages = {
            storage_identity(tensor): (number, tensor) for number, tensor, _ in self._inputs.values()
        }
        self._written: dict[tuple[str, int], frozenset[int]] = {}
        self._fed = set(self._storages)
        """Storages with something that was computed from inputs."""
        self._alive: list[torch.UntypedStorage] = []
        self._left = _BYTES_KEPT

    def depends_on(self, tensor: torch.Tensor) -> frozenset[int]:
        return self._written.get(storage_identity(tensor), frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with DisableTorchFunction():
            if isinstance(func, HigherOrderOperator):
                with self:
                    return run_plainly(func, args, kwargs)
            if any(has_its_own_dispatch(kind) for kind in types):
                return NotImplemented
            plan = plan_of(func)
            if plan.composite:
                with self:
                    return func.decompose(*args, **kwargs)
            steps = None if plan.untouched else self._decompositions.get(func)
            if steps is not None:
                with self:
                    result = steps(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            with disable_current_modes():
                number = self._record(func, args, kwargs, computes=not plan.untouched)
            result = func(*args, **kwargs)
            if not plan.untouched:
                with disable_current_modes():
                    self._keep(number, written_or_returned(func, args, kwargs, result))
            return result

    def _keep(self, number: int, results: Sequence[torch.Tensor]) -> None:
        call = self.calls[number]
        for tensor in results:
            key = storage_identity(tensor)
            self._written[key] = call.depends | {number} | self.depends_on(tensor)
            self._alive.append(tensor.untyped_storage())
            if call.computes or call.op in _COPIES:
                self._fed.add(key)

    def _record(self, func: Any, args: Any, kwargs: Any, *, computes: bool) -> int:
        name = op_name(func).removesuffix("_")
        tensors = [] if name in _SHAPES else [tensor for _, tensor in tensors_in((args, kwargs))]
        fed = any(storage_identity(tensor) in self._fed for tensor in tensors)
        computes = computes and fed and name not in _COPIES
        rest = [each for each in (*args, *kwargs.values()) if not _holds_tensors(each)]
        self.calls.append(
            OpCall(
                name,
                tuple(self._operand(tensor) for tensor in tensors) if computes else (),
                repr(rest),
                frozenset().union(*(self.depends_on(tensor) for tensor in tensors)),
                computes,
            )
        )
        return len(self.calls) - 1

    def _operand(self, tensor: torch.Tensor) -> Operand:
        plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
        size = tensor.numel() * tensor.itemsize
        keep = plain and size <= self._left
        self._left -= size if keep else 0
        number, given = self._storages.get(storage_identity(tensor), (None, None))
        same = given is not None and number is not None and self._is_as_given(given, tensor)
        value = tensor.detach().clone() if keep else None
        return Operand(
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            plain and tensor.is_contiguous(),
            value,
            number if same else None,
            None if storage_identity(tensor) in self._fed or value is None else _uniform(value),
        )

    def _is_as_given(self, given: torch.Tensor, tensor: torch.Tensor) -> bool:
        """Return whether a tensor on the storage of an input is that input, and nothing wrote to it."""
        _, _, version = self._inputs[id(given)]
        return given.shape == tensor.shape and given.dtype is tensor.dtype and version_of(given) == version


def _uniform(value: torch.Tensor) -> float | None:
    """Return the finite number throughout a tensor; None if there is none."""
    if not value.numel() or value.is_complex():
        return None
    number = float(value.reshape(-1)[0])
    return number if math.isfinite(number) and bool((value == number).all()) else None


def _holds_tensors(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(each, torch.Tensor) for each in items)


def dependencies(calls: Calls, paths: Collection[str]) -> list[frozenset[int]] | None:
    """Return for each path the calls on which it depends; None if one of them is no tensor of the run."""
    if not set(paths) <= calls.results.keys():
        return None
    return [calls.results[path] for path in paths]
