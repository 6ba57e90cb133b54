"""Collectives without the other ranks: record what each returns on this rank, and return that again.

A graph that communicates cannot be run again by one rank: the others would not take part. So the results of a
call are recorded, and a later run of the same graph gets them back. Where this rank gives a collective
another input than the recorded one (float64, another compiler, a smaller candidate), the result is what the
collective would have returned if the other ranks had given the same as before. A collective that was not
recorded returns what the group would if all ranks had this rank's input, as the backend "fake" of torch does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.bundle.process_groups import COMMUNICATING
from torchrepro.judge.op_forms import run_plainly
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import Collective, Repro
from torchrepro.torch_api.distributed import group_named, wait_for
from torchrepro.torch_api.fake import FakeTensor
from torchrepro.torch_api.modes import TorchDispatchMode
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, schema_of

_LOCAL = "_wrap_tensor_autograd"
"""The operator of these libraries that talks to nobody."""
_AT_ONCE = "shard_dim_alltoall"
"""The collective that has its result when it returns; the others are waited for."""
_KNOWN = frozenset(
    {
        *("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
        *("wait_tensor", _AT_ONCE),
    }
)
_PICKS = {"max": torch.maximum, "min": torch.minimum}
_DISPATCHED = (torch.Tensor, torch.nn.Parameter, FakeTensor)
"""Fake tensors come from the propagation of shardings, and talk to nobody."""


@contextmanager
def without_other_ranks(repro: Repro, *, exact: bool = False) -> Iterator[None]:
    """Run the body of a repro with its recorded collectives; `exact` allows no others."""
    if repro.groups is None:
        yield
        return
    with _Replay(repro.collectives, exact=exact):
        yield


@contextmanager
def recorded_collectives(record: CollectiveRecord) -> Iterator[None]:
    """Record the collectives that run in the body, on real tensors."""
    mode = _Record(record)
    with mode:
        yield
    mode.wait_for_all()


@dataclass
class CollectiveRecord:
    """The collectives of a call, in the order in which they finished."""

    collectives: list[Collective] = field(default_factory=list)
    unknown: str = ""
    """The name of an operator that communicates and cannot be recorded; empty if there was none."""


@dataclass(frozen=True)
class _Call:
    """A call of an operator that communicates."""

    op: str
    """Without the suffixes of its variants: `all_reduce` for `all_reduce_coalesced_`."""
    given: tuple[torch.Tensor, ...]
    arguments: tuple[Any, ...]
    """The plain ones: how to reduce, sizes."""
    group: Any
    into: tuple[torch.Tensor, ...] | None
    """The tensors that the operator writes its results to, where it does."""
    single: bool
    """Whether it takes and returns one tensor and not a list."""

    @classmethod
    def of(cls, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
        schema = schema_of(func)
        values = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | {**kwargs}
        name = _base_name(func)
        group, out = values.pop("group_name", ""), values.pop("out", None)
        first = next(iter(values))
        given = values.pop(first)
        single = isinstance(given, torch.Tensor)
        tensors = (given,) if single else tuple(given)
        into = (out,) if out is not None else tensors if schema.name.endswith("_") else None
        plain = tuple(tuple(value) if isinstance(value, list) else value for value in values.values())
        return cls(name, tensors, plain, group, into, single)

    @property
    def place(self) -> tuple[int, int]:
        """The rank of this process in the group, and the group's size; alone if the group is unknown."""
        try:
            group = group_named(self.group) if isinstance(self.group, str) else self.group
        except RuntimeError:
            sizes = [value for value in self.arguments if type(value) is int]
            return 0, sizes[0] if sizes and self.op != "broadcast" else 1
        return group.rank(), group.size()

    def returned(self, results: Sequence[torch.Tensor]) -> Any:
        """Return the results as the operator does."""
        if self.into is not None:
            results = [target.copy_(result) for target, result in zip(self.into, results, strict=True)]
        return results[0] if self.single else list(results)


def is_known(func: OpOverload) -> bool:
    """Return whether an operator that communicates can be recorded and replaced."""
    return func.namespace not in ("c10d", "symm_mem") and _base_name(func) in _KNOWN


def _base_name(func: OpOverload) -> str:
    name = str(schema_of(func).name).partition("::")[2]
    for suffix in ("_", "_out", "_coalesced"):
        name = name.removesuffix(suffix)
    return name


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            with self:
                return run_plainly(func, args, kwargs or {})
        if not all(kind in _DISPATCHED for kind in types):
            return NotImplemented  # a wrapper takes the op apart first, and its parts are dispatched here
        talks = isinstance(func, OpOverload) and func.namespace in COMMUNICATING
        if talks and _base_name(func) != _LOCAL and FakeTensor not in types:
            return self.communicate(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def communicate(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Record(_Mode):
    def __init__(self, record: CollectiveRecord) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._record = record
        self._running: dict[int, tuple[_Call, torch.Tensor, torch.Tensor]] = {}
        """By the address of the result: the call, a copy of what it was given, and the result."""

    def communicate(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _Call.of(func, args, kwargs) if is_known(func) else None
        if call is None:
            self._record.unknown = str(func)
            return func(*args, **kwargs)
        given = [] if call.op == "wait_tensor" else [tensor.clone() for tensor in call.given]
        results = func(*args, **kwargs)
        for before, result in zip(given, [results] if call.single else results, strict=False):
            self._running[result.data_ptr()] = (call, before, result)
        if call.op in ("wait_tensor", _AT_ONCE):
            self._finish(results)
        return results

    def wait_for_all(self) -> None:
        """Wait for what the body has started and left to its caller; to wait twice does no harm."""
        for _, _, result in list(self._running.values()):
            self._finish(wait_for(result))

    def _finish(self, result: torch.Tensor) -> None:
        started = self._running.pop(result.data_ptr(), None)
        if started is not None:
            call, given, _ = started
            self._record.collectives.append(Collective(call.op, call.arguments, given, result.clone()))


class _Replay(_Mode):
    def __init__(self, recorded: Sequence[Collective], *, exact: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._exact = exact
        self._recorded: dict[Any, deque[Collective]] = defaultdict(deque)
        for one in recorded:
            self._recorded[one.op, one.arguments, tuple(one.given.shape)].append(one)

    def communicate(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_known(func):
            raise TorchReproError(
                f"the operator {func} talks to other ranks in a way that is not understood",
                next_step="the graph cannot be checked in one process",
            )
        call = _Call.of(func, args, kwargs)
        if call.op == "wait_tensor":
            return call.given[0]
        return call.returned([self._result(call, tensor) for tensor in call.given])

    def _result(self, call: _Call, given: torch.Tensor) -> torch.Tensor:
        known = self._recorded[call.op, call.arguments, tuple(given.shape)]
        if known:
            return _as_recorded(known.popleft(), given, call)
        if self._exact:
            raise TorchReproError(
                f"the compiled code did not run the collective {call.op} in a way that can be recorded",
                next_step="the call is not checked",
            )
        return _alone(call, given)


def _alone(call: _Call, given: torch.Tensor) -> torch.Tensor:
    """Return what the collective returns on this rank if all ranks have this input; a sum counts it once."""
    rank, size = call.place
    match call.op:
        case "all_reduce" | "broadcast":
            return given.clone()
        case "all_gather_into_tensor":
            return torch.cat([given.reshape(1) if given.dim() == 0 else given] * size)
        case "reduce_scatter_tensor":
            return given.chunk(size)[rank].clone()
        case "all_to_all_single":
            rows = sum(call.arguments[0]) if call.arguments and call.arguments[0] else given.shape[0]
            wanted = torch.arange(rows, device=given.device) % max(given.shape[0], 1)
            return given.index_select(0, wanted)
        case "shard_dim_alltoall":
            gathered, sharded = call.arguments
            return torch.cat([given] * size, gathered).chunk(size, sharded)[rank].clone()
    raise HarnessError(f"no stand-in for {call.op}")


def _as_recorded(recorded: Collective, given: torch.Tensor, call: _Call) -> torch.Tensor:
    """Return the recorded result, changed by what this rank gives now where it gave something else."""
    rank, size = call.place
    before, returned = (value.to(given.dtype) for value in (recorded.given, recorded.returned))
    how = next((value for value in call.arguments if isinstance(value, str)), "")
    if call.op == "broadcast":
        return given.clone() if call.arguments == (rank,) else returned
    if call.op == "all_gather_into_tensor":
        made = returned.clone()
        made.chunk(size)[rank].copy_(given.reshape(1) if given.dim() == 0 else given)
        return made
    if call.op == "reduce_scatter_tensor":
        given, before = given.chunk(size)[rank], before.chunk(size)[rank]
    same = (given == before) | ((given != given) & (before != before))
    if bool(same.all()):
        return returned.clone()
    if call.op not in ("all_reduce", "reduce_scatter_tensor"):
        return _alone(call, given)
    if how in ("sum", "avg"):
        changed = returned + (given - before) / (size if how == "avg" else 1)
    elif how in _PICKS:
        changed = _PICKS[how](returned, given)
    else:
        changed = given
    return torch.where(same, returned, changed.to(returned.dtype))
