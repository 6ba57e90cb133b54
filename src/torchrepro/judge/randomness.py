"""Random draws: record those of the eager run, replay them in the reference, disturb no generator.

The same seed gives other numbers in float64 than in float32, so the reference cannot draw for itself. What it
replays are the recorded results, widened: numbers that were drawn are data, exactly as an input is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from torchrepro.judge.op_forms import run_plainly
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.modes import TorchDispatchMode
from torchrepro.torch_api.ops import DispatchKey, HigherOrderOperator, has_kernel, op_name, schema_of


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One random op and what came out of it: its results and the arguments that it wrote to."""

    op: str
    results: tuple[torch.Tensor, ...]


Draws = tuple[Draw, ...]


class RecordRandom(TorchDispatchMode):
    """Around an eager run: keeps what each random op gave, in order, and in which dtypes was computed."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws: list[Draw] = []
        self._dtypes: set[torch.dtype] = set()

    @property
    def draws(self) -> Draws:
        return tuple(self._draws)

    @property
    def is_random(self) -> bool:
        """Whether the run drew at all."""
        return bool(self._draws)

    @property
    def coarsest_dtype(self) -> torch.dtype | None:
        """The floating dtype with the fewest digits that any op gave a result in."""
        floating = [dtype for dtype in self._dtypes if dtype.is_floating_point]
        return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            with self:
                return run_plainly(func, args, kwargs)
        if not is_random_op(func):
            result = func(*args, **kwargs)
            for item in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(item, torch.Tensor):
                    self._dtypes.add(item.dtype)
            return result
        if is_composite(func):  # in inference mode `dropout` arrives whole; elsewhere in parts
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if draws_now(func, args, kwargs):
            kept = tuple(tensor.detach().clone() for tensor in _drawn(func, args, kwargs, result))
            self._draws.append(Draw(func.name(), kept))
        return result


class ReplayRandom:
    """Hands the recorded draws to another run of the same computation, in the same order."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._used = 0

    def replay(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a random op for the shape of its results, then put the recorded numbers into them."""
        if self._used == len(self._draws):
            raise ReferenceUnavailable(
                f"the reference run draws more often than the eager run, which drew {len(self._draws)} times"
                f" (next: {func.name()})"
            )
        draw = self._draws[self._used]
        self._used += 1
        if func.name() != draw.op:
            raise ReferenceUnavailable(
                f"random draw {self._used} is {func.name()} in the reference run, {draw.op} in the eager run"
            )
        if {"dropout_p", "dropout"} & set(_argument_names(func)):
            raise ReferenceUnavailable(f"{draw.op} draws inside a fused kernel: its mask cannot be replayed")
        result = func(*args, **kwargs)
        targets = _drawn(func, args, kwargs, result)
        shapes = [tuple(tensor.shape) for tensor in targets]
        recorded = [tuple(tensor.shape) for tensor in draw.results]
        if shapes != recorded:
            raise ReferenceUnavailable(
                f"random draw {self._used} ({draw.op}) has shapes {shapes} in the reference run and"
                f" {recorded} in the eager run"
            )
        for target, value in zip(targets, draw.results, strict=True):
            target.copy_(value)
        recompute = _RECOMPUTED.get(func.overloadpacket)
        if recompute is not None:
            recompute(targets, *args)
        return result

    def check_all_used(self) -> None:
        if self._used != len(self._draws):
            raise ReferenceUnavailable(
                f"the reference run drew {self._used} times, the eager run {len(self._draws)} times"
            )


def _dropout(results: list[torch.Tensor], values: torch.Tensor, p: float, *_: Any) -> None:
    out, mask = results
    out.copy_(values * mask * (0.0 if p == 1.0 else 1.0 / (1.0 - p)))


def _fused_dropout(results: list[torch.Tensor], values: torch.Tensor, kept: float, *_: Any) -> None:
    _dropout(results, values, 1.0 - kept)


def _rrelu(results: list[torch.Tensor], values: torch.Tensor, *_: Any) -> None:
    out, noise = results
    out.copy_(values * noise)


_RECOMPUTED: dict[Any, Callable[..., None]] = {
    torch.ops.aten.native_dropout: _dropout,
    torch.ops.aten._fused_dropout: _fused_dropout,
    torch.ops.aten.rrelu_with_noise: _rrelu,
    torch.ops.aten.rrelu_with_noise_functional: _rrelu,
}
"""Ops that draw and compute at once: the result follows in float64 from the recorded mask."""


@lru_cache(maxsize=4096)
def is_random_op(func: Any) -> bool:
    """Return whether the op may take numbers from a generator."""
    returns_tensors = any("Tensor" in str(item.type) for item in schema_of(func).returns)
    return torch.Tag.nondeterministic_seeded in func.tags and returns_tensors


@lru_cache(maxsize=4096)
def is_composite(func: Any) -> bool:
    """Return whether the op is only ever a sequence of other ops. Checked on torch 2.11 to 2.15."""
    return has_kernel(func.name(), DispatchKey.CompositeImplicitAutograd)


def draws_now(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether this call of a random op draws: dropout in evaluation or with probability zero does not."""
    values = dict(zip((item.name for item in schema_of(func).arguments), args, strict=False)) | kwargs
    if values.get("train") is False or (op_name(func).startswith("rrelu") and not values.get("training")):
        return False
    return not any(name in values and values[name] == 0 for name in ("dropout_p", "dropout")) and not (
        "dropout_p" in _argument_names(func) and "dropout_p" not in values
    )


@lru_cache(maxsize=4096)
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(item.name for item in schema_of(func).arguments)


def _drawn(func: Any, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """The tensors that hold what was drawn: the results, then arguments written to that are no results."""
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    for position, item in enumerate(schema_of(func).arguments):
        if item.alias_info is not None and item.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(item.name)
            if not any(value is known for known in results):
                results.append(value)
    return [item for item in results if isinstance(item, torch.Tensor)]
