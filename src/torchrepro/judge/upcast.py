"""Run any computation in float64: its tensors, its dtype arguments, its promotions, its in-place writes.

The rule is "data is exact, operations are not rounded". A tensor that holds narrow values when an op reads it
(an input, a parameter, a closure, `torch.tensor(0.1)`) keeps those values: eager and compiled start from the
same bits. Whatever an op computes, a cast (`x.half()`) or a factory (`torch.full((2,), 0.1)`) included, is
not rounded. So a compiler that rounds less often than eager, as fusing ones do, is nearer to this truth and
never blamed for it, and a rounding that both sides make is an error that both have.

Two modes work together. The outer one sees calls above autograd and swaps narrow tensors that the run does
not own for wide stand-ins: a gradient has to have the dtype of the tensor that it belongs to, so a narrow
leaf could not receive a wide one. The inner one sees every single op below autograd and widens what is left;
in a backward pass it is alone, because autograd's engine runs without function modes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrepro.judge.op_forms import float64_form, has_plain_form, run_plainly
from torchrepro.judge.randomness import ReplayRandom, draws_now, is_composite, is_random_op
from torchrepro.judge.wide_tensors import (
    FLOAT64,
    Precision,
    Shadows,
    has_its_own_dispatch,
    map_tensors,
    widen,
)
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.modes import DisableTorchFunction, TorchDispatchMode, inside_transform
from torchrepro.torch_api.ops import HigherOrderOperator, custom_op_definition, decomposition_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How one op is run in float64."""

    composite: bool
    """A sequence of other ops: let them come one by one."""
    untouched: bool
    """A view, or an op on storages: a view of a narrow tensor stays narrow, so that it stays a view."""
    reinterprets_bits: bool
    random: bool
    returns_tensors: bool
    writes: frozenset[int | str]
    """Arguments written to, by position and by name."""
    returned_arguments: tuple[tuple[int, int | str], ...]
    """(position in the results, argument) of each result that is an argument written to."""
    half_to_float: int | None
    """The position of the flag with which a softmax says that it widens; there is nothing left to widen."""
    form: Callable[..., Any] | None


@lru_cache(maxsize=4096)
def plan_of(func: Any) -> OpPlan:
    schema = func._schema
    written = [
        (i, item)
        for i, item in enumerate(schema.arguments)
        if item.alias_info is not None and item.alias_info.is_write
    ]
    returned: list[tuple[int, int | str]] = []
    for position, item in enumerate(schema.returns):
        if item.alias_info is None or not item.alias_info.is_write:
            continue
        for i, argument in written:
            if argument.alias_info.before_set == item.alias_info.before_set:
                returned.append((position, argument.name if argument.kwarg_only else i))
    views = any(item.alias_info is not None and not item.alias_info.is_write for item in schema.returns)
    names = [item.name for item in schema.arguments]
    return OpPlan(
        composite=is_composite(func),
        untouched=(views and func is not aten.lift_fresh.default and func is not aten.view.dtype)
        or any("Storage" in str(item.type) for item in schema.arguments),
        reinterprets_bits=func is aten.view.dtype,
        random=is_random_op(func),
        returns_tensors=any("Tensor" in str(item.type) for item in schema.returns),
        writes=frozenset([*(i for i, _ in written), *(item.name for _, item in written)]),
        returned_arguments=tuple(returned),
        half_to_float=names.index("half_to_float") if "half_to_float" in names else None,
        form=float64_form(func),
    )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The default dtype is process-wide, so it is changed for single ops only and always put back."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def python_body_of(func: Any) -> Callable[..., Any] | None:
    """Return the function of a `torch.library.custom_op`, whose casts are to be rewritten too.

    None for every other op, and where another body is registered for a device. Checked on torch 2.11 to 2.15.
    """
    if func.namespace in ("aten", "prims"):
        return None
    definition = custom_op_definition(func._schema.name)
    if definition is None or set(definition._backend_fns) - {None}:
        return None
    body: Callable[..., Any] = definition._init_fn
    return body


_NARROW_ATTEMPTS = (torch.float32, torch.bfloat16, torch.float16)


class Upcast:
    """`with Upcast() as run: f()` runs `f` in float64; afterwards `run.notes` says what could not be.

    `current(tensor)` gives the wide value that a narrow tensor from outside has now: a write to it inside
    never reaches the tensor itself.
    """

    def __init__(self, precision: Precision = FLOAT64, replay: ReplayRandom | None = None) -> None:
        self.precision = precision
        self.unavailable: ReferenceUnavailable | None = None
        """Set when the run met something impossible, even if the user's code swallowed the exception."""
        self._shadows = Shadows(precision)
        self._rounded: Counter[str] = Counter()
        self._fresh_draws = 0
        self._replay = replay
        self._ops = _WidenOps(self)
        self._calls = _SwapNarrowTensors(self)
        self._entered: list[ExitStack] = []

    @property
    def notes(self) -> tuple[str, ...]:
        rounded = sorted(self._rounded.items())
        notes = [f"{what} ({count} time{'s' if count > 1 else ''})" for what, count in rounded]
        if self._fresh_draws:
            notes.append(f"{self._fresh_draws} random ops drew new numbers: the eager run's were not given")
        return tuple(notes)

    def current(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._shadows.widened(tensor)

    def __enter__(self) -> Upcast:
        modes = ExitStack()
        modes.enter_context(self._ops)
        modes.enter_context(self._calls)
        self._entered.append(modes)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered.pop().__exit__(*raised)

    def _refuse(self, error: ReferenceUnavailable) -> ReferenceUnavailable:
        self.unavailable = self.unavailable or error
        return error

    def _argument(self, value: Any) -> Any:
        """Return what an op is given in place of an argument that is no tensor."""
        if isinstance(value, torch.dtype):
            return self.precision.widened(value)
        if isinstance(value, torch.device):
            return self.precision.moved(value)
        return value


class _SwapNarrowTensors(TorchFunctionMode):
    """Above autograd: tensors from outside give way to stand-ins, higher-order ops to plain code."""

    def __init__(self, run: Upcast) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASK_NO_VALUE:
            return func(*args, **kwargs)
        if func is _GET_DTYPE:
            return self._run.precision.widened(func(*args))
        if not inside_transform():  # below a transform (vmap, grad) the other mode sees the real tensors
            args, kwargs = map_tensors(args, self._swap), map_tensors(kwargs, self._swap)
        if isinstance(func, HigherOrderOperator) and has_plain_form(func):
            with self:
                return run_plainly(func, args, kwargs)
        return func(*args, **kwargs)

    def _swap(self, tensor: torch.Tensor) -> torch.Tensor:
        shadows = self._run._shadows
        return shadows.of(tensor) if shadows.is_narrow(tensor) else tensor


_GET_DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_ASK_NO_VALUE = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "device", "layout", "is_cuda")]
    + [getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_contiguous", "__len__")]
)
"""Answered by the narrow tensor itself: building a stand-in for a question about shape would waste memory."""


class _WidenOps(TorchDispatchMode):
    """Below autograd: one op at a time, with wide arguments, rewritten dtypes and replayed draws."""

    supports_higher_order_operators = True

    def __init__(self, run: Upcast) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunction():  # what is asked of tensors here is about them as they are
            return self._dispatched(func, types, args, kwargs or {})

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, HigherOrderOperator):
            with self:
                return run_plainly(func, args, kwargs)
        if any(has_its_own_dispatch(kind) for kind in types):
            return NotImplemented  # it takes the op apart first, and its parts come back here
        plan = plan_of(func)
        if plan.composite:
            with self:
                return func.decompose(*args, **kwargs)
        if plan.untouched:
            return func(*args, **kwargs)
        if plan.reinterprets_bits:
            return self._reinterpret(func, *args)
        return self._widened(func, plan, args, kwargs)

    def _widened(self, func: Any, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        run = self._run
        floating = False

        def read(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal floating
            floating = floating or tensor.is_floating_point() or tensor.is_complex()
            if run.precision.device is None and not run._shadows.is_narrow(tensor):
                return tensor
            return run._shadows.widened(tensor)

        def written(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal floating
            floating = floating or tensor.is_floating_point() or tensor.is_complex()
            return run._shadows.of(tensor) if run._shadows.is_narrow(tensor) else tensor

        wide_args = [
            map_tensors(run._argument(value), written if i in plan.writes else read)
            for i, value in enumerate(args)
        ]
        wide_kwargs = {
            name: map_tensors(run._argument(value), written if name in plan.writes else read)
            for name, value in kwargs.items()
        }
        if plan.half_to_float is not None and len(wide_args) > plan.half_to_float:
            wide_args[plan.half_to_float] = False
        if floating or not plan.returns_tensors:
            result = self._run_op(func, plan, wide_args, wide_kwargs, kwargs)
        else:  # integers promote to the default dtype, and so do factories without a dtype
            with default_dtype(run.precision.real):
                result = self._run_op(func, plan, wide_args, wide_kwargs, kwargs)
        return self._returned(plan, result, args, kwargs)

    def _run_op(self, func: Any, plan: OpPlan, args: list[Any], kwargs: Any, given_kwargs: Any) -> Any:
        run = self._run
        if plan.random and draws_now(func, args, kwargs):
            if run._replay is None:
                run._fresh_draws += 1
            else:
                try:
                    return run._replay.replay(func, args, kwargs)
                except ReferenceUnavailable as refused:
                    raise run._refuse(refused) from None
        if plan.form is not None:
            return plan.form(*args, **kwargs)
        body = python_body_of(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
                raise
            return self._without_a_wide_kernel(func, plan, args, kwargs, given_kwargs, error)

    def _without_a_wide_kernel(
        self, func: Any, plan: OpPlan, args: list[Any], kwargs: Any, given_kwargs: Any, error: Exception
    ) -> Any:
        """Run a decomposition, else the op in a dtype that it has, on rounded inputs; real errors stay."""
        simpler = decomposition_of(func)
        if simpler is not None:
            try:
                with self:
                    return simpler(*args, **kwargs)
            except (RuntimeError, TypeError, NotImplementedError):
                pass  # the op itself is tried next, and `error` tells what was wrong
        kept = {name: value for name, value in given_kwargs.items() if isinstance(value, torch.dtype)}
        for dtype in _NARROW_ATTEMPTS:
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            rounded = partial(_rounded_to, dtype, pairs)
            narrow_args, narrow_kwargs = map_tensors(args, rounded), map_tensors(kwargs, rounded) | kept
            if not pairs:
                break
            try:
                result = func(*narrow_args, **narrow_kwargs)
            except (RuntimeError, TypeError, NotImplementedError):
                continue
            if plan.writes:
                for wide, narrow in pairs:
                    wide.copy_(narrow)
            self._run._rounded[f"{func.name()} has no float64 kernel and ran in {str(dtype)[6:]}"] += 1
            return result
        if _is_about_dtypes(str(error)):
            first = str(error).strip().splitlines()[0]
            raise self._run._refuse(
                ReferenceUnavailable(f"{func.name()} cannot run in float64: {first}")
            ) from error
        raise error

    def _returned(self, plan: OpPlan, result: Any, args: Any, kwargs: Any) -> Any:
        """Return the result as autograd expects it: a written argument itself, everything else wide."""
        if not plan.returns_tensors:
            return result
        precision = self._run.precision

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return widen(tensor, precision) if precision.is_narrower(tensor.dtype) else tensor

        if not plan.returned_arguments:
            return map_tensors(result, wide)
        several = isinstance(result, (tuple, list))
        items = list(result) if several else [result]
        for position, argument in plan.returned_arguments:
            items[position] = args[argument] if isinstance(argument, int) else kwargs[argument]
        items = [
            item if any(i == position for position, _ in plan.returned_arguments) else map_tensors(item, wide)
            for i, item in enumerate(items)
        ]
        return tuple(items) if several else items[0]

    def _reinterpret(self, func: Any, tensor: torch.Tensor, dtype: torch.dtype) -> Any:
        """`x.view(torch.int32)`: bits have no float64 counterpart; they are read in the dtype they have."""
        run = self._run
        if not tensor.is_floating_point() or run._shadows.is_narrow(tensor):
            return func(tensor, dtype)
        if run.precision.widened(dtype) is tensor.dtype:
            return func(tensor, tensor.dtype)
        if dtype.itemsize == tensor.dtype.itemsize:
            return func(tensor, dtype)
        if dtype in (torch.int32, torch.uint32):
            run._rounded["bits of a float were read as those of float32"] += 1
            return func(tensor.to(torch.float32), dtype)
        raise run._refuse(ReferenceUnavailable(f"the bits of a floating tensor are read as {str(dtype)[6:]}"))


def _rounded_to(
    dtype: torch.dtype, pairs: list[tuple[torch.Tensor, torch.Tensor]], tensor: torch.Tensor
) -> torch.Tensor:
    """Return a rounded copy, noted together with what it is a copy of; integers as they are."""
    if not tensor.is_floating_point():
        return tensor
    pairs.append((tensor, tensor.to(dtype)))
    return pairs[-1][1]


def _is_about_dtypes(message: str) -> bool:
    text = message.lower()
    return any(
        word in text
        for word in ("not implemented for", "dtype", "double", "scalar type", "not supported", "unsupported")
    )
