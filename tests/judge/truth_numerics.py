"""Rows of the truth table on floating values: healthy numerics that must pass, bugs that must not.

The healthy rows compute the same mathematics by two routes, as eager and a compiler do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from truth_pair import T, bad, changed, good, randn

from torchrepro.nouns.verdict import Blame


def rounded(dtype: torch.dtype, compute: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Any:
    """Eager is the correctly rounded truth; `compute` makes the compiled result from it."""
    truth = randn(*shape)
    ref = truth.to(dtype)
    return ref, compute(ref), truth


def twice(
    eager: Callable[..., Any], compiled: Callable[..., Any], dtype: torch.dtype, *shapes: tuple[int, ...]
) -> Any:
    """The same mathematics by two routes in a dtype, and the first route in float64."""
    inputs = [randn(*shape, seed=number).to(dtype) for number, shape in enumerate(shapes)]
    return eager(*inputs), compiled(*inputs), eager(*(value.double() for value in inputs))


def in_float32(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What a fused kernel does: float32 inside, one rounding at the end."""
    return lambda *inputs: function(*(value.float() for value in inputs)).to(inputs[0].dtype)


def backwards_sum(values: torch.Tensor) -> torch.Tensor:
    """The sum of each row in another order: eight lanes, then across."""
    return values.flip(-1).unflatten(-1, (8, -1)).sum(-1).sum(-1)


def layer_norm(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(values, values.shape[-1:])


def layer_norm_one_pass(values: torch.Tensor) -> torch.Tensor:
    mean = values.mean(-1, keepdim=True)
    variance = (values * values).mean(-1, keepdim=True) - mean * mean
    return (values - mean) * torch.rsqrt(variance + 1e-5)


def gelu(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(values)


def gelu_unfused(values: torch.Tensor) -> torch.Tensor:
    return values * 0.5 * (1.0 + torch.erf(values * 0.7071067811865476))


def mlp(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        values = layer_norm(values + gelu(values @ weight * 0.1))
    return values


def attention_scores(values: torch.Tensor, *, scale: float = 1.0, masked: float = -1e9) -> torch.Tensor:
    scores = values @ values.transpose(-1, -2) * scale
    mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, masked)


F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64

HEALTHY = [
    *(
        pair
        for dtype in (F32, BF16, F16)
        for pair in (
            good(
                f"a sum in another order, {dtype}",
                lambda d=dtype: twice(lambda x: x.sum(-1), in_float32(backwards_sum), d, (64, 4096)),
            ),
            good(
                f"layer norm in one pass, {dtype}",
                lambda d=dtype: twice(layer_norm, in_float32(layer_norm_one_pass), d, (64, 256)),
            ),
            good(
                f"gelu unfused, {dtype}", lambda d=dtype: twice(gelu, in_float32(gelu_unfused), d, (64, 256))
            ),
            good(
                f"an MLP fused, {dtype}", lambda d=dtype: twice(mlp, in_float32(mlp), d, (64, 64), (64, 64))
            ),
            good(
                f"an MLP where eager is the fused one, {dtype}",
                lambda d=dtype: twice(in_float32(layer_norm), layer_norm, d, (64, 64)),
            ),
            good(
                f"softmax, {dtype}",
                lambda d=dtype: twice(
                    lambda x: x.softmax(-1),
                    in_float32(lambda x: x.exp() / x.exp().sum(-1, True)),
                    d,
                    (64, 256),
                ),
            ),
            good(
                f"masked scores, {dtype}",
                lambda d=dtype: twice(
                    lambda x: attention_scores(x / 4, masked=-6e4),
                    in_float32(lambda x: attention_scores(x, scale=0.0625, masked=-6e4)),
                    d,
                    (64, 64),
                ),
            ),
            good(
                f"one element, {dtype}",
                lambda d=dtype: rounded(d, lambda ref: ref * (1 + torch.finfo(d).eps), 1),
            ),
            good(f"bitwise equal, {dtype}", lambda d=dtype: rounded(d, lambda ref: ref.clone(), 1000)),
        )
    ),
    good(
        "cancellation noise",
        lambda: twice(
            lambda x, y: (x + 1e3) - (y + 1e3), lambda x, y: ((x + 1e3) - 1e3) - y, F32, (1000,), (1000,)
        ),
    ),
    good(
        "a mean that is zero in exact arithmetic",
        lambda: twice(
            lambda x: layer_norm(x).mean(-1), lambda x: backwards_sum(layer_norm(x)) / 256, F32, (64, 256)
        ),
    ),
    good(
        "the same in float64",
        lambda: twice(
            lambda x: layer_norm(x).mean(-1), lambda x: backwards_sum(layer_norm(x)) / 256, F64, (64, 256)
        ),
    ),
    good("a sum of float64", lambda: twice(lambda x: x.sum(-1), backwards_sum, F64, (64, 4096))),
    good(
        "a cumulative sum by blocks",
        lambda: twice(
            lambda x: x.cumsum(-1),
            lambda x: (
                x.unflatten(-1, (16, -1)).cumsum(-1)
                + torch.cat([torch.zeros(8, 1), x.unflatten(-1, (16, -1)).sum(-1).cumsum(-1)[:, :-1]], -1)[
                    ..., None
                ]
            ).flatten(-2),
            F32,
            (8, 4096),
        ),
    ),
    good(
        "a wide range",
        lambda: twice(lambda x: (x * 20).exp(), lambda x: (x * 10).exp().square(), F32, (4096,)),
    ),
    good(
        "exactly right eager, one ulp off",
        lambda: (T([0.5, 0.25]), T([0.5, 0.25 * (1 + 2**-23)]), T([0.5, 0.25]).double()),
    ),
    good(
        "a scalar near zero beside large ones",
        lambda: (T([1000.0, 1e-4]), T([1000.0, 1.2e-4]), T([1000.0, 1e-4]).double()),
    ),
    good("flushed denormals", lambda: (T([1e-39, 1.0]), T([0.0, 1.0]), T([1e-39, 1.0]).double())),
    good("all zero", lambda: (torch.zeros(5), torch.zeros(5), torch.zeros(5).double())),
    good("all equal", lambda: (torch.full((5,), 0.1), torch.full((5,), 0.1), torch.full((5,), 0.1).double())),
    good(
        "huge float64 values",
        lambda: (
            T([1e300, 1e-300]).double(),
            T([1e300 * (1 + 1e-15), 1e-300]).double(),
            T([1e300, 1e-300]).double(),
        ),
    ),
    good(
        "eager far off, compiled right",
        lambda: (randn(1000).float() * 1.05, randn(1000).float(), randn(1000)),
        Blame.EAGER,
    ),
    good(
        "float32 logits of a bfloat16 model",
        lambda: (
            randn(64, 100).bfloat16().float(),
            (randn(64, 100) * (1 + 2e-3 * randn(64, 100, seed=1))).bfloat16().float(),
            randn(64, 100),
        ),
    ),
    good(
        "a permuted result",
        lambda: (
            randn(8, 9, 10).float().permute(2, 0, 1),
            randn(8, 9, 10).float().permute(2, 0, 1).contiguous(),
            randn(8, 9, 10).permute(2, 0, 1),
        ),
    ),
]

BROKEN = [
    *(
        pair
        for dtype in (F32, BF16, F16)
        for pair in (
            bad(
                f"5 % too large, {dtype}",
                lambda d=dtype: rounded(d, lambda ref: (ref.double() * 1.05).to(d), 64, 64),
            ),
            bad(
                f"5 % too large after an MLP, {dtype}",
                lambda d=dtype: twice(mlp, lambda x, w: in_float32(mlp)(x, w) * 1.05, d, (64, 64), (64, 64)),
            ),
            bad(
                f"5 % too large, one element, {dtype}",
                lambda d=dtype: rounded(d, lambda ref: (ref.double() * 1.05).to(d), 1),
            ),
            bad(
                f"one element of a million, {dtype}",
                lambda d=dtype: rounded(d, lambda ref: changed(ref, 12345, ref[12345] + 1), 1 << 20),
            ),
            bad(
                f"shifted by one element, {dtype}", lambda d=dtype: rounded(d, lambda ref: ref.roll(1), 1000)
            ),
            bad(f"transposed, {dtype}", lambda d=dtype: rounded(d, lambda ref: ref.t().contiguous(), 32, 32)),
            bad(
                f"one stale row, {dtype}",
                lambda d=dtype: rounded(d, lambda ref: changed(ref, 7, ref[6]), 100, 50),
            ),
            bad(
                f"one lane of garbage, {dtype}",
                lambda d=dtype: rounded(d, lambda ref: changed(ref, (slice(None), 3), 17.0), 50, 16),
            ),
            bad(
                f"tiny gradients with the wrong sign, {dtype}",
                lambda d=dtype: (randn(100).mul(1e-3).to(d), -randn(100).mul(1e-3).to(d), randn(100) * 1e-3),
            ),
            bad(
                f"zeros instead of small gradients, {dtype}",
                lambda d=dtype: (randn(100).mul(1e-3).to(d), torch.zeros(100, dtype=d), randn(100) * 1e-3),
            ),
            bad(
                f"one huge outlier, no truth, {dtype}",
                lambda d=dtype: (
                    torch.ones(100000, dtype=d),
                    changed(torch.ones(100000, dtype=d), 5, 1000.0),
                ),
            ),
        )
    ),
    bad("a thousandth too large", lambda: rounded(F32, lambda ref: ref * 1.001, 1000)),
    bad("a thousandth too large, no truth", lambda: rounded(F32, lambda ref: ref * 1.001, 1000)[:2]),
    bad("a thousandth too large, one element", lambda: rounded(F32, lambda ref: ref * 1.001, 1)),
    bad(
        "the precision of bfloat16 in a float32 tensor",
        lambda: rounded(F32, lambda ref: ref.bfloat16().float(), 1000),
    ),
    bad(
        "the precision of half in a float32 tensor",
        lambda: rounded(F32, lambda ref: ref.half().float(), 1000),
    ),
    bad(
        "the precision of float32 in a float64 tensor",
        lambda: rounded(F64, lambda ref: ref.float().double(), 1000),
    ),
    bad(
        "the precision of float32 in a float64 tensor, no truth",
        lambda: rounded(F64, lambda ref: ref.float().double(), 1000)[:2],
    ),
    bad(
        "gradients of 1e-12 with the wrong sign",
        lambda: (randn(100).float() * 1e-12, randn(100).float() * -1e-12, randn(100) * 1e-12),
    ),
    bad("zeros instead of 1e-12, no truth", lambda: (randn(100).float() * 1e-12, torch.zeros(100))),
    bad(
        "a wrong score beside masked ones",
        lambda: twice(attention_scores, lambda x: changed(attention_scores(x), (5, 3), 0.5), F32, (64, 64)),
    ),
    bad(
        "all scores beside masked ones 5 % off",
        lambda: twice(attention_scores, lambda x: attention_scores(x, scale=1.05), F32, (64, 64)),
    ),
    bad(
        "small elements lost beside large ones",
        lambda: _mixed(lambda ref: torch.where(ref.abs() < 1, 0.0, ref)),
    ),
    good("small elements kept beside large ones", lambda: _mixed(lambda ref: ref * (1 + 2**-22))),
    bad(
        "one element of ten million",
        lambda: rounded(F32, lambda ref: changed(ref, 9_999_999, ref[9_999_999] + 1e-3), 10_000_000),
    ),
    bad(
        "complex, imaginary part 5 % off",
        lambda: (
            torch.complex(randn(99), randn(99, seed=1)).to(torch.complex64),
            torch.complex(randn(99), randn(99, seed=1) * 1.05).to(torch.complex64),
            torch.complex(randn(99), randn(99, seed=1)),
        ),
    ),
    bad("a result at twice the scale in a scalar loss", lambda: (T(2.5), T(5.0), T(2.5).double())),
    bad(
        "dropout's scale forgotten",
        lambda: (T([0.0, 2, 4, 0]), T([0.0, 1, 2, 0]), T([0.0, 2, 4, 0]).double()),
    ),
    bad(
        "an element that should be zero",
        lambda: (torch.zeros(1000), changed(torch.zeros(1000), 3, 1e-3), torch.zeros(1000).double()),
    ),
]


def _mixed(compute: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A third of the elements a million times smaller than the others."""
    truth = randn(3000).sign() * (0.5 + randn(3000, seed=1).abs())
    truth[::3] *= 1e-6
    return truth.float(), compute(truth.float()), truth
