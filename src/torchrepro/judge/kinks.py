"""Discontinuities: where a rounding decides which side of a kink, a step or a tie a result takes.

An op is discontinuous if it turns floating numbers into integers or booleans (comparisons, `argmax`, `sort`,
indices of max-pooling, casts) or if it is in one of the tables here. `SideRecorder` compares the sides that
two runs of the same computation take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from torchrepro.judge.compare import tensors_in
from torchrepro.torch_api.ops import op_name, schema_of

_LIMIT = 1 << 28
"""Elements whose sides are kept: a byte each."""

_KINKS_AT: dict[str, tuple[float, ...]] = {
    "relu": (0.0,),
    "relu6": (0.0, 6.0),
    "leaky_relu": (0.0,),
    "elu": (0.0,),
    "celu": (0.0,),
    "selu": (0.0,),
    "abs": (0.0,),
    "sgn": (0.0,),
    "sign": (0.0,),
    "heaviside": (0.0,),
    "_prelu_kernel": (0.0,),
    "rrelu_with_noise": (0.0,),
    "hardswish": (-3.0, 3.0),
    "hardsigmoid": (-3.0, 3.0),
}
_KINKS_NAMED: dict[str, tuple[str, ...]] = {
    "threshold": ("threshold",),
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "hardtanh": ("min_val", "max_val"),
    "hardshrink": ("lambd",),
    "softshrink": ("lambd",),
    "maximum": ("other",),
    "minimum": ("other",),
    "fmax": ("other",),
    "fmin": ("other",),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), ("other",)),
}
"""By op (its backward included), the arguments at which it has a kink."""

_STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "round": lambda x: x - x.floor() - 0.5,
    "floor": lambda x: x - x.round(),
    "ceil": lambda x: x - x.round(),
    "trunc": lambda x: x - x.round(),
    "frac": lambda x: x - x.round(),
}
"""By op, the distance from the nearest step."""

_QUOTIENTS = ("floor_divide", "remainder", "fmod")


@dataclass(frozen=True, slots=True)
class Crossing:
    """Elements that were on different sides of a discontinuity in two runs."""

    op: str
    count: int
    ulp: float | None
    """The largest distance from the kink, in units in the last place at the scale of the tensor."""

    def __str__(self) -> str:
        elements = f"{self.count} element{'s' if self.count > 1 else ''}"
        if self.ulp is None or not math.isfinite(self.ulp):
            return f"`{self.op}` ({elements} on the other side)"
        near = f"{max(1, math.ceil(self.ulp)):,} ulp"
        what = "step" if self.op in _STEPS or self.op in _QUOTIENTS else "kink"
        return f"`{self.op}` ({elements} within {near} of its {what})"


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    op: str
    side: torch.Tensor
    distance: torch.Tensor | None


@lru_cache(maxsize=4096)
def _plain_name(func: Any) -> str:
    """Return the name of an op, its in-place and backward variants included: `relu` for `relu_`."""
    return op_name(func).removesuffix("_").removesuffix("_backward")


def is_discontinuous(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> bool:
    """Return whether a rounding of the op's floating operands could make its result jump."""
    name = _plain_name(func)
    if name in _KINKS_AT or name in _KINKS_NAMED or name in _STEPS or name in _QUOTIENTS:
        return True
    if (name == "div" and kwargs.get("rounding_mode") is not None) or name.startswith("fake_quantize"):
        return True
    given = any(tensor.is_floating_point() for _, tensor in tensors_in((args, dict(kwargs))))
    return given and any(_is_discrete(tensor) for _, tensor in tensors_in(result))


def _is_discrete(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


class SideRecorder:
    """Keeps the side that each discontinuous op took; `crossings` are the differences from an earlier run."""

    def __init__(self, earlier: SideRecorder | None = None) -> None:
        self._earlier = earlier
        self._sides: list[_Side] = []
        self._kept = 0
        self.crossings: list[Crossing] = []

    def see(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Record one call of an op; its operands are as it read them, unless it wrote to them."""
        if not is_discontinuous(func, args, kwargs, result) or self._kept > _LIMIT:
            return
        names = [argument.name for argument in schema_of(func).arguments]
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        for side in _sides_of(func, values, result):
            self._compare(side)
            self._kept += side.side.numel()
            self._sides.append(side)

    def _compare(self, now: _Side) -> None:
        position = len(self._sides)
        if self._earlier is None or position >= len(self._earlier._sides):
            return
        before = self._earlier._sides[position]
        if before.op != now.op or before.side.shape != now.side.shape:
            return
        changed = before.side != now.side
        count = int(changed.sum())
        if not count:
            return
        ulp = None
        if now.distance is not None and now.distance.shape == changed.shape:
            ulp = float(now.distance[changed].max())
        self.crossings.append(Crossing(now.op, count, ulp))


def _sides_of(func: Any, values: Mapping[str, Any], result: Any) -> list[_Side]:
    """Return the sides of one call: of its kinks, of its steps, else its discrete results themselves."""
    name, x = _plain_name(func), values.get("self", values.get("self_or_result"))
    if isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout is torch.strided:
        x = x.detach()
        if name in _KINKS_AT or name in _KINKS_NAMED:
            kinks = [*_KINKS_AT.get(name, ()), *(values.get(kink) for kink in _KINKS_NAMED.get(name, ()))]
            if name.endswith("shrink"):
                kinks += [-kink for kink in kinks if isinstance(kink, (int, float))]
            return [_side_of_kink(name, x, kink) for kink in kinks if kink is not None]
        if name in _STEPS:
            distance = _STEPS[name](x).abs() / (torch.finfo(x.dtype).eps * x.abs().clamp(min=0.5))
            return [_Side(name, x.round() if name == "round" else getattr(x, _step_of(name))(), distance)]
        if name in _QUOTIENTS:
            return [_Side(name, torch.floor(x / values["other"]), None)]
    return [
        _Side(op_name(func), tensor.detach(), None)
        for _, tensor in tensors_in(result)
        if tensor.layout is torch.strided and (_is_discrete(tensor) or name in ("div", *_FAKE_QUANTIZE))
    ]


_FAKE_QUANTIZE = ("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask")


def _step_of(name: str) -> str:
    return "trunc" if name == "frac" else name


def _side_of_kink(name: str, x: torch.Tensor, kink: Any) -> _Side:
    """Return on which side of a kink each element is, and how far from it.

    A kink at zero has no ulp of its own: the noise of `x` is that of the numbers it was computed from, whose
    scale is the RMS of `x`.
    """
    if isinstance(kink, torch.Tensor):
        kink = kink.detach().to(x.device)
        scale = torch.maximum(x.abs(), kink.abs().to(x.dtype))
    else:
        scale = x.abs().clamp(min=abs(float(kink)))
    typical = x.square().mean().sqrt() if x.numel() else x.new_ones(())
    scale = scale.clamp(min=float(typical.nan_to_num(0.0, 0.0, 0.0)))
    distance = (x - kink).abs() / (torch.finfo(x.dtype).eps * scale.clamp(min=torch.finfo(x.dtype).tiny))
    return _Side(name, (x > kink).to(torch.int8) - (x < kink).to(torch.int8), distance)
