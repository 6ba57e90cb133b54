"""Run eager with rounding noise on each op's result: what another correct implementation could have given.

For each op, the exact result on the same operands is computed in float64. An element that equals it carries
no rounding and stays as it is: views, `relu`, `where`, masks of 0 and 1, `x * 2`. Others get noise around the
exact result: one unit in the last place of the dtype at most (half a unit RMS), and for ops that accumulate,
where terms may cancel, the size of the error that eager itself makes there. An op that is several steps in
one (a normalisation, a softmax and their gradients) also gets what noise in these steps does to its result:
the rounding of one mean moves a whole row the same way.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch

from torchrepro.judge.compare import tensors_in
from torchrepro.judge.kinks import SideRecorder, is_discontinuous
from torchrepro.judge.op_forms import map_tensors, written_or_returned
from torchrepro.judge.upcast import OpPlan, PlannedOpMode, exact_results
from torchrepro.torch_api.modes import disable_current_modes
from torchrepro.torch_api.ops import decomposition_of, op_name
from torchrepro.torch_api.tensors import is_zero_tensor

aten = torch.ops.aten

_ROW = 16
"""From this length on, a row's noise is measured from its own elements."""
_PAD = 64
"""No vector of a CPU has more elements than this."""
_LAYOUT_LIMIT = 1 << 22
_LAYOUT_ULP = 64.0


class RoundingNoise(PlannedOpMode):
    """Adds noise of `amplitude` roundings to each op's result; `sign` -1 gives the opposite noise of a seed.

    `layout` 1 or 2 runs elementwise ops in another layout in place of adding noise: strided, so that their
    scalar code runs, or padded, so that their vector code does.
    """

    def __init__(
        self,
        amplitude: float,
        seed: int,
        sign: float = 1.0,
        *,
        layout: int = 0,
        compare_layouts: bool = False,
        sides: SideRecorder | None = None,
        in_steps: bool = False,
    ) -> None:
        super().__init__()
        self._amplitude = amplitude
        self._seed = seed
        self._sign = sign
        self._layout = layout
        self._compares_layouts = compare_layouts or layout > 0
        self._sides = sides
        self._in_steps = in_steps
        """The ops are the steps of one op: the cast of its result to a half type is its own rounding."""
        self._generators: dict[torch.device, torch.Generator] = {}
        self.discontinuous = False
        """Whether an op was met at which a rounding can make the result jump."""
        self.inconsistent: Counter[str] = Counter()
        """Elements whose result depends on the layout, by op, as far as layouts were compared."""

    def run_planned(self, func: Any, plan: OpPlan, args: Any, kwargs: Any) -> Any:
        if plan.untouched or _lacks_memory((args, kwargs)):
            return func(*args, **kwargs)
        noisy = bool(self._amplitude) and not plan.random and not self._layout
        noisy = noisy and _computes(func) and not (self._in_steps and op_name(func) in _CASTS)
        with disable_current_modes():  # the caller's modes see the op, and nothing of what is done here
            exact = self._exact(func, plan, args, kwargs) if noisy else []
            others = self._other_layouts(func, plan, args, kwargs) if self._compares_layouts else []
        result = func(*args, **kwargs)
        if _lacks_memory(result):
            return result
        with disable_current_modes():
            self.discontinuous = self.discontinuous or is_discontinuous(func, args, kwargs, result)
            targets = written_or_returned(func, args, kwargs, result) if noisy or others else []
            self._compare_layouts(func, targets, others)
            if noisy:
                unknown = [None] * len(targets)
                shifts = [] if plan.writes or is_elementwise(func) else self._shifts(func, args, kwargs)
                for target, true, shift in zip(targets, exact or unknown, shifts or unknown, strict=False):
                    self._add_noise(func, target, true, shift)
            if self._sides is not None:
                self._sides.see(func, args, kwargs, result)
        return result

    def _exact(self, func: Any, plan: OpPlan, args: Any, kwargs: Any) -> list[_Exact | None]:
        """Return for each result the exact value and the error that eager makes, where they are known."""
        wide = any(
            tensor.dtype in (torch.float64, torch.complex128) for _, tensor in tensors_in((args, kwargs))
        )
        if not wide:
            return [None if true is None else (true, 1.0) for true in exact_results(func, args, kwargs)]
        # Float64 has no wider type: the op's error is measured in float32 and scaled.
        narrow_args, narrow_kwargs = _narrowed(args), _narrowed(kwargs)
        true = exact_results(func, narrow_args, narrow_kwargs)
        try:
            result = func(*narrow_args, **narrow_kwargs)
        except (RuntimeError, TypeError, NotImplementedError):
            return []
        got = written_or_returned(func, narrow_args, narrow_kwargs, result)
        scale = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        return [
            None if one is None or one.shape != rounded.shape else (rounded.to(one.dtype) - one, scale)
            for one, rounded in zip(true, got, strict=False)
        ]

    def _shifts(self, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor | None]:
        """Return how far noise in the steps of an op moves each result, where torch knows its steps.

        It is the difference of two runs of the same steps, so steps that are wrong do not show in it.
        """
        steps, found = decomposition_of(func), []
        if steps is None:
            return []
        noise = RoundingNoise(self._amplitude, self._seed, self._sign, in_steps=True)
        noise._generators = self._generators
        for mode in (noise, nullcontext()):
            own_args, own_kwargs = map_tensors((args, kwargs), torch.Tensor.clone)
            try:
                with mode:
                    result = steps(*own_args, **own_kwargs)
            except Exception:  # torch's steps do not cover every call
                return []
            found.append(written_or_returned(func, own_args, own_kwargs, result))
        return [
            (noisy.double() - plain.double()).nan_to_num_(0.0, 0.0, 0.0)
            if noisy.shape == plain.shape and noisy.is_floating_point()
            else None
            for noisy, plain in zip(*found, strict=False)
        ]

    def _add_noise(
        self, func: Any, target: torch.Tensor, exact: _Exact | None, shift: torch.Tensor | None
    ) -> None:
        if not (target.is_floating_point() or target.is_complex()) or target.layout is not torch.strided:
            return
        if target.is_quantized or target.dtype.itemsize == 1 or not target.numel():
            return
        if target.is_complex():
            real = torch.view_as_real(target)
            parts = None if exact is None else (torch.view_as_real(exact[0].resolve_conj()), exact[1])
            self._add_noise(func, real, parts, None)
            return
        info = torch.finfo(target.dtype)
        wide = target.to(torch.float64)
        if exact is None or exact[0].shape != target.shape:
            base, error = wide, torch.zeros_like(wide)
            # Integers are likely to be exact.
            inexact = wide.isfinite() & ((wide != wide.round()) | (wide.abs() > 1.0 / info.eps))
        elif exact[1] == 1.0:
            base, error = exact[0], wide - exact[0]
            inexact = base.isfinite() & (wide != base)
        else:
            base, error = wide, exact[0] * exact[1]
            inexact = wide.isfinite() & (error != 0) & (wide != wide.round())
        if not bool(inexact.any()):
            return
        spacing = base.abs() * info.eps
        local, half = error.abs(), info.eps > 1e-5
        if half or is_elementwise(func):
            # What rounding the exact result does not explain: half types accumulate in float32.
            local = (local - spacing).clamp_(min=0.0)
        local.nan_to_num_(0.0, 0.0, 0.0)
        if not is_elementwise(func):
            local = _row_rms(local)
        # Half types round once an op on both sides: no other order of summation, no more than half a unit.
        amplitude = self._sign * (0.5 * self._amplitude**0.5 if half else self._amplitude)
        generator = self._generator(target.device)
        uniform = torch.rand(base.shape, generator=generator, dtype=torch.float64, device=base.device)
        normal = torch.randn(base.shape, generator=generator, dtype=torch.float64, device=base.device)
        noise = (uniform.mul_(2.0).sub_(1.0) * spacing + normal.clamp_(-4.0, 4.0) * local) * amplitude
        if shift is not None and shift.shape == noise.shape:
            noise += shift
        target.copy_(torch.where(inexact, (base + noise).to(target.dtype), target))

    def _generator(self, device: torch.device) -> torch.Generator:
        found = self._generators.get(device)
        if found is None:
            found = self._generators[device] = torch.Generator(device=device).manual_seed(self._seed)
        return found

    def _other_layouts(self, func: Any, plan: OpPlan, args: Any, kwargs: Any) -> list[list[torch.Tensor]]:
        """Return what an elementwise op gives for strided and for padded copies of its operands.

        One that writes to its first operand writes to the copy.
        """
        if plan.writes - {0, "self"} or plan.random or not is_elementwise(func):
            return []
        tensors = [tensor for _, tensor in tensors_in((args, kwargs))]
        shaped = [tensor for tensor in tensors if tensor.dim()]
        plain = all(tensor.layout is torch.strided and tensor.device.type == "cpu" for tensor in tensors)
        if not shaped or not plain or any(tensor.is_quantized for tensor in tensors):
            return []
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in shaped))
        count = shape.numel()
        if not 0 < count <= _LAYOUT_LIMIT:
            return []

        def strided(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dim():
                return tensor
            return tensor.new_empty(2 * count)[::2].copy_(tensor.expand(shape).reshape(-1))

        def padded(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dim():
                return tensor
            flat = tensor.expand(shape).reshape(-1)
            return torch.cat([flat, flat[:1].expand(2 * _PAD - count % _PAD)])

        found = []
        for change in (strided, padded):
            own_args, own_kwargs = map_tensors((args, kwargs), change)
            try:
                result = func(*own_args, **own_kwargs)
            except (RuntimeError, TypeError, NotImplementedError):
                return []
            results = written_or_returned(func, own_args, own_kwargs, result)
            if any(one.dim() != 1 for one in results):
                return []
            found.append([one[:count].reshape(shape) for one in results])
        return found

    def _compare_layouts(
        self, func: Any, results: list[torch.Tensor], others: list[list[torch.Tensor]]
    ) -> None:
        numbered = [
            (number, *pair)
            for number, given in enumerate(others, 1)
            for pair in zip(results, given, strict=False)
        ]
        for number, result, other in numbered:
            if other.shape != result.shape or other.dtype is not result.dtype:
                continue
            differs = _differ(result, other)
            count = int(differs.sum())
            if count:
                name = op_name(func)
                self.inconsistent[name] = max(self.inconsistent[name], count)
                if number == self._layout:
                    result.copy_(torch.where(differs, other, result))


def _lacks_memory(values: Any) -> bool:
    """Return whether a tensor among the values has no memory.

    Forward mode has tangents of zeros without it, and computes their shapes on the meta device.
    """
    return any(tensor.is_meta or is_zero_tensor(tensor) for _, tensor in tensors_in(values))


_Exact = tuple[torch.Tensor, float]
"""The exact result and 1.0; for float64, the error in float32 and the factor that scales it."""


_FILLS = (
    *("full", "full_like", "new_full", "fill", "scalar_tensor", "masked_fill"),
    *("index_fill", "constant_pad_nd", "where", "copy", "clone"),
)
"""Ops that only place numbers: a constant that its dtype cannot hold is rounded alike on all sides.

`arange` and `linspace` compute theirs: compiled code multiplies an index by a step in float32, and eager
in float64."""

_CASTS = ("_to_copy", "convert_element_type")


@lru_cache(maxsize=4096)
def _computes(func: Any) -> bool:
    return op_name(func).removesuffix("_") not in _FILLS


def _row_rms(values: torch.Tensor) -> torch.Tensor:
    """Return the RMS of each row, or of the whole where rows are short."""
    squares = values.square()
    rows = values.dim() > 1 and values.shape[-1] >= _ROW
    return (squares.mean(-1, keepdim=True) if rows else squares.mean()).sqrt()


def _differ(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return where two results of one op differ by more than rounding."""
    if first.is_complex():
        first, second = (torch.view_as_real(one.resolve_conj()) for one in (first, second))
        return _differ(first, second).any(-1)
    if not first.is_floating_point():
        return first != second
    agree = (first == second) | (first.isnan() & second.isnan())
    scale = torch.maximum(first.abs(), second.abs()) * (_LAYOUT_ULP * torch.finfo(first.dtype).eps)
    near = (first - second).abs() <= scale.clamp(min=torch.finfo(first.dtype).tiny)
    return ~(agree | near & first.isfinite() & second.isfinite())


_UNTAGGED = (
    *("hardswish", "mish", "_prelu_kernel", "log_sigmoid_forward", "log_sigmoid"),
    *("polar", "complex", "floor_divide", "rsub"),
)
"""Elementwise ops that torch does not tag so, in any overload."""


@lru_cache(maxsize=4096)
def is_elementwise(func: Any) -> bool:
    """Return whether each element of the result depends on the same element of each operand alone.

    Torch tags most such ops; of their in-place and backward ops it tags some.
    """
    if torch.Tag.pointwise in func.tags:
        return True
    name = op_name(func).removesuffix("_")
    forward, suffix, _ = name.rpartition("_backward")
    if func.namespace != "aten":
        return False
    if (forward if suffix else name) in _UNTAGGED:
        return True
    if not suffix or not hasattr(aten, forward):
        return False
    packet = getattr(aten, forward)
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


def _narrowed(value: Any) -> Any:
    """Return copies of an op's arguments with float32 in place of float64."""
    dtypes = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    if isinstance(value, torch.dtype):
        return dtypes.get(value, value)
    if isinstance(value, torch.Tensor):
        return value.to(dtypes.get(value.dtype, value.dtype), copy=True)
    if type(value) in (list, tuple):
        return type(value)(_narrowed(item) for item in value)
    if type(value) is dict:
        return {key: _narrowed(item) for key, item in value.items()}
    return value
