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

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrepro.judge.clone import FLOAT64, Precision, TensorCloner, has_its_own_dispatch, is_plain
from torchrepro.judge.op_forms import (
    OpMode,
    ReplayRandom,
    draws_now,
    float64_forms,
    has_plain_form,
    is_composite,
    is_random_op,
    map_tensors,
    run_plainly,
    written_or_returned,
)
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.modes import (
    DisableTorchFunction,
    default_dtype,
    disable_current_modes,
    inside_transform,
)
from torchrepro.torch_api.ops import (
    HigherOrderOperator,
    body_of,
    custom_op_definition,
    decomposition_of,
    device_bodies,
    schema_of,
)
from torchrepro.torch_api.tensors import storage_number

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How one op is run in float64."""

    composite: bool
    """A sequence of other ops, which are dispatched one by one."""
    untouched: bool
    """A view, or an op on storages: a view of a narrow tensor stays narrow, so that it stays a view."""
    random: bool
    returns_tensors: bool
    writes: frozenset[int | str]
    """Arguments written to, by position and by name."""
    returned: Mapping[int, int | str]
    """By position in the results, the argument written to that such a result is."""
    half_to_float: int | None
    """The position of the flag that makes a softmax widen; its operand is wide already."""
    form: Callable[..., Any] | None
    """What is run in its place: ops that have float64 kernels, or the Python body of a custom op."""


@lru_cache(maxsize=4096)
def plan_of(func: Any) -> OpPlan:
    schema = schema_of(func)
    names = [item.name for item in schema.arguments]
    written = [
        (i, item)
        for i, item in enumerate(schema.arguments)
        if item.alias_info is not None and item.alias_info.is_write
    ]
    aliases = [(i, item.alias_info) for i, item in enumerate(schema.returns) if item.alias_info is not None]
    views = any(not alias.is_write for _, alias in aliases)
    return OpPlan(
        composite=is_composite(func),
        untouched=(views and func not in (aten.lift_fresh.default, aten.view.dtype))
        or any("Storage" in str(item.type) for item in schema.arguments),
        random=is_random_op(func),
        returns_tensors=any("Tensor" in str(item.type) for item in schema.returns),
        writes=frozenset([*(i for i, _ in written), *(item.name for _, item in written)]),
        returned={
            position: item.name if item.kwarg_only else i
            for position, alias in aliases
            for i, item in written
            if alias.is_write and item.alias_info.before_set == alias.before_set
        },
        half_to_float=names.index("half_to_float") if "half_to_float" in names else None,
        form=float64_forms().get(func) or _python_body_of(func),
    )


def _python_body_of(func: Any) -> Callable[..., Any] | None:
    """Return the function of a `torch.library.custom_op`, whose casts are to be rewritten too.

    None for every other op, and where another body is registered for a device.
    """
    if func.namespace in ("aten", "prims"):
        return None
    definition = custom_op_definition(schema_of(func).name)
    if definition is None or set(device_bodies(definition)) - {None}:
        return None
    return body_of(definition)


_NARROW_ATTEMPTS = (torch.float32, torch.bfloat16, torch.float16)
_ABOUT_DTYPES = ("not implemented for", "dtype", "double", "scalar type", "not supported", "unsupported")


class Upcast:
    """`with Upcast() as run: f()` runs `f` in float64; afterwards `run.notes` says what could not be.

    A narrow tensor that the run reads but does not own is replaced by a wide stand-in, which lives as long as
    the run. Stand-ins are made per storage, so that a write through one view is seen through every other, and
    the tensor itself is never written to. Without `autograd`, only tensors that are written to have one;
    others are widened for each op that reads them. A tensor that is wide already has one if its memory is
    that of a tensor in `outside`.
    """

    def __init__(
        self,
        precision: Precision = FLOAT64,
        replay: ReplayRandom | None = None,
        *,
        autograd: bool = True,
        outside: Iterable[torch.Tensor] = (),
    ) -> None:
        self.precision = precision
        self.autograd = autograd
        self.replay = replay
        self.unavailable: ReferenceUnavailable | None = None
        """Set when the run met something impossible, even if the user's code swallowed the exception."""
        self.rounded: Counter[str] = Counter()
        self.fresh_draws = 0
        self._outside = {storage_number(tensor.untyped_storage()) for tensor in outside if is_plain(tensor)}
        self._cloner = TensorCloner(precision.real, precision.device)
        self._stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._entered: list[ExitStack] = []

    @property
    def notes(self) -> tuple[str, ...]:
        rounded = sorted(self.rounded.items())
        notes = [f"{what} ({count} time{'s' if count > 1 else ''})" for what, count in rounded]
        if self.fresh_draws:
            notes.append(f"{self.fresh_draws} random ops drew new numbers: the eager run's were not given")
        return tuple(notes)

    def __enter__(self) -> Upcast:
        modes = ExitStack()
        modes.enter_context(_WidenOps(self))
        modes.enter_context(_SwapNarrowTensors(self))
        self._entered.append(modes)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered.pop().__exit__(*raised)

    def is_narrow(self, tensor: torch.Tensor) -> bool:
        return self.precision.is_narrower(tensor.dtype)

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor may not be written to, or have been replaced by a stand-in."""
        if self.is_narrow(tensor):
            return True
        plain = bool(self._outside) and is_plain(tensor)
        return plain and storage_number(tensor.untyped_storage()) in self._outside

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in of this tensor, the same object each time, to keep its autograd history."""
        found = self._stand_ins.get(id(tensor))
        if found is None:
            with torch.no_grad(), disable_current_modes():
                found = (tensor, self._cloner.value_of(tensor))
            found[1].requires_grad_(tensor.requires_grad)
            self._stand_ins[id(tensor)] = found
        return found[1]

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the stand-in, if this tensor or its storage has one already."""
        if id(tensor) in self._stand_ins or self._cloner.has_storage_of(tensor):
            return self.stand_in(tensor)
        return None

    def current(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the wide value that a tensor has now: its stand-in, else a wide copy that is not kept."""
        known = self.known(tensor)
        return known if known is not None else self.precision.widen(tensor)

    def current_values(self, value: Any) -> Any:
        """Return a result with narrow tensors (a returned closure variable) replaced by their wide values."""
        if isinstance(value, torch.Tensor):
            return self.current(value)
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(self.current_values(item) for item in value)
        if type(value) in (list, tuple):
            return type(value)(self.current_values(item) for item in value)
        if isinstance(value, dict):
            made: Any = copy.copy(value)
            for name, part in value.items():
                made[name] = self.current_values(part)
            return made
        if is_dataclass(value) and not isinstance(value, type):
            made = copy.copy(value)
            for each in fields(value):
                object.__setattr__(made, each.name, self.current_values(getattr(value, each.name)))
            return made
        return value

    def refuse(self, error: ReferenceUnavailable) -> ReferenceUnavailable:
        self.unavailable = self.unavailable or error
        return error


class _SwapNarrowTensors(TorchFunctionMode):
    """Above autograd: replaces tensors from outside by stand-ins, higher-order ops by plain code."""

    def __init__(self, run: Upcast) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASK_NO_VALUE:
            return func(*args, **kwargs)
        if func is _GET_DTYPE:
            return self._run.precision.widened(func(*args))
        higher_order = isinstance(func, HigherOrderOperator)
        # Below a transform (vmap, grad) the other mode sees the real tensors.
        if (self._run.autograd or higher_order) and not inside_transform():
            args, kwargs = map_tensors(args, self._swap), map_tensors(kwargs, self._swap)
        if higher_order and has_plain_form(func):
            with self:
                return run_plainly(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            # Some functions (attention, `prelu`, `tensordot`) compare their operands' dtypes before any op.
            writes = kwargs.get("out") is not None or getattr(func, "__name__", "_").endswith("_")
            if self._run.autograd or self._run.unavailable is not None or writes:
                raise
        widen = self._run.current
        return func(*map_tensors(args, widen), **map_tensors(kwargs, widen))

    def _swap(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._run.stand_in(tensor) if self._run.is_narrow(tensor) else tensor


_GET_DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_ASK_NO_VALUE = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "device", "layout", "is_cuda")]
    + [getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_contiguous", "__len__")]
)
"""Read from the narrow tensor itself: building a stand-in just to read a shape would waste memory."""


class PlannedOpMode(OpMode):
    """Sees every op below autograd that is neither a composite nor decomposed by a tensor subclass."""

    run_planned: Callable[[Any, OpPlan, Any, Any], Any]
    """Run an op and return its result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunction():  # attributes read here are those of the actual tensors
            return super().__torch_dispatch__(func, types, args, kwargs)

    def run_op(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(has_its_own_dispatch(kind) for kind in types):
            return NotImplemented  # the subclass decomposes the op first, and the parts are dispatched here
        plan = plan_of(func)
        if plan.composite:
            with self:
                return func.decompose(*args, **kwargs)
        return self.run_planned(func, plan, args, kwargs)


class _WidenOps(PlannedOpMode):
    """Below autograd: one op at a time, with wide arguments, rewritten dtypes and replayed draws."""

    def __init__(self, run: Upcast) -> None:
        super().__init__()
        self._run = run

    def run_planned(self, func: Any, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        if plan.untouched:
            return func(*args, **kwargs)
        if func is aten.view.dtype:
            return self._reinterpret(func, *args)
        return self._widened(func, plan, args, kwargs)

    def _widened(self, func: Any, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        run, precision = self._run, self._run.precision
        floating = False

        def wide(value: Any, written: bool) -> Any:
            """Return what the op is given in place of one of its arguments."""
            if isinstance(value, torch.dtype):
                return precision.widened(value)
            if isinstance(value, torch.device):
                return precision.moved(value)
            return map_tensors(value, partial(wide_tensor, written))

        def wide_tensor(written: bool, tensor: torch.Tensor) -> torch.Tensor:
            nonlocal floating
            floating = floating or tensor.is_floating_point() or tensor.is_complex()
            if written:
                return run.stand_in(tensor) if run.is_outside(tensor) else tensor
            return tensor if precision.device is None and not run.is_outside(tensor) else run.current(tensor)

        wide_args = [wide(value, i in plan.writes) for i, value in enumerate(args)]
        wide_kwargs = {name: wide(value, name in plan.writes) for name, value in kwargs.items()}
        if plan.half_to_float is not None and len(wide_args) > plan.half_to_float:
            wide_args[plan.half_to_float] = False
        # Integers promote to the default dtype, and so do factories without a dtype.
        promotes = plan.returns_tensors and not floating
        with default_dtype(precision.real) if promotes else nullcontext():
            result = self._run_op(func, plan, wide_args, wide_kwargs, kwargs)
        return self._returned(plan, result, args, kwargs)

    def _run_op(self, func: Any, plan: OpPlan, args: list[Any], kwargs: Any, given_kwargs: Any) -> Any:
        run = self._run
        if plan.random and draws_now(func, args, kwargs):
            if run.replay is None:
                run.fresh_draws += 1
            else:
                try:
                    return run.replay.replay(func, args, kwargs)
                except ReferenceUnavailable as refused:
                    raise run.refuse(refused) from None
        if plan.form is not None:
            with self:
                return plan.form(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
                raise
            return self._without_a_wide_kernel(func, plan, args, kwargs, given_kwargs, error)

    def _without_a_wide_kernel(
        self, func: Any, plan: OpPlan, args: list[Any], kwargs: Any, given_kwargs: Any, error: Exception
    ) -> Any:
        """Run a decomposition, else the op in a dtype that it has, on rounded inputs; raise other errors."""
        simpler = decomposition_of(func)
        if simpler is not None:
            try:
                with self:
                    return simpler(*args, **kwargs)
            except (RuntimeError, TypeError, NotImplementedError):
                pass  # the op itself is tried next, and `error` says what was wrong
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
            self._run.rounded[f"{func.name()} has no float64 kernel and ran in {str(dtype)[6:]}"] += 1
            return result
        if any(word in str(error).lower() for word in _ABOUT_DTYPES):
            first = str(error).strip().splitlines()[0]
            raise self._run.refuse(
                ReferenceUnavailable(f"{func.name()} cannot run in float64: {first}")
            ) from error
        raise error

    def _returned(self, plan: OpPlan, result: Any, args: Any, kwargs: Any) -> Any:
        """Return the result as autograd expects it: a written argument itself, everything else wide."""

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return self._run.precision.widen(tensor) if self._run.is_narrow(tensor) else tensor

        if not plan.returned:
            return map_tensors(result, wide) if plan.returns_tensors else result
        several = isinstance(result, (tuple, list))
        items = [map_tensors(item, wide) for item in (result if several else (result,))]
        for position, argument in plan.returned.items():
            items[position] = args[argument] if isinstance(argument, int) else kwargs[argument]
        return tuple(items) if several else items[0]

    def _reinterpret(self, func: Any, tensor: torch.Tensor, dtype: torch.dtype) -> Any:
        """Run `x.view(torch.int32)`: bits have no float64 counterpart and are read in the dtype they have."""
        run = self._run
        if not tensor.is_floating_point() or run.is_narrow(tensor):
            return func(tensor, dtype)
        if run.precision.widened(dtype) is tensor.dtype:
            return func(tensor, tensor.dtype)
        if dtype.itemsize == tensor.dtype.itemsize:
            return func(tensor, dtype)
        if dtype in (torch.int32, torch.uint32):
            run.rounded["bits of a float were read as those of float32"] += 1
            return func(tensor.to(torch.float32), dtype)
        raise run.refuse(ReferenceUnavailable(f"the bits of a floating tensor are read as {str(dtype)[6:]}"))


def _rounded_to(
    dtype: torch.dtype, pairs: list[tuple[torch.Tensor, torch.Tensor]], tensor: torch.Tensor
) -> torch.Tensor:
    """Return a rounded copy and append it with its source to `pairs`; return integers as they are."""
    if not tensor.is_floating_point():
        return tensor
    pairs.append((tensor, tensor.to(dtype)))
    return pairs[-1][1]


def exact_results(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor | None]:
    """Return the results of one op on these operands, computed in float64; none where that is impossible.

    In the order of `written_or_returned`; None for one that is not floating. Nothing is written to.
    """
    run, plan = Upcast(autograd=False), plan_of(func)

    def spared(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if run.is_narrow(tensor) else tensor.clone()

    args = [map_tensors(item, spared) if i in plan.writes else item for i, item in enumerate(args)]
    kwargs = {key: map_tensors(item, spared) if key in plan.writes else item for key, item in kwargs.items()}
    try:
        with _WidenOps(run):
            result = func(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError, ReferenceUnavailable):
        return []
    if run.rounded:
        return []
    targets = written_or_returned(func, args, kwargs, result)
    exact = [run.current(tensor) if run.is_narrow(tensor) else tensor for tensor in targets]
    return [tensor if tensor.is_floating_point() or tensor.is_complex() else None for tensor in exact]
