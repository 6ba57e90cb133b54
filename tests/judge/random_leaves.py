"""Random leaves for the tests of what accepts leaves without the complete rule."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@st.composite
def leaves(draw: Any, dtypes: Any = DTYPES) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eager, compiled and the truth: noise of any size, zeros, small next to large, and sometimes a NaN."""
    dtype = draw(st.sampled_from(dtypes))
    count = draw(st.sampled_from((1, 2, 3, 5, 63, 64, 65, 130, 1000, 1024, 20_000)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def random() -> torch.Tensor:
        return torch.randn(count, dtype=torch.float64, generator=generator)

    spread = draw(st.sampled_from((0.0, 0.0, 1.0, 3.0)))
    scale = draw(st.sampled_from((1.0, 1.0, 1e-3, 1e-30, 1e30 if dtype is not torch.float16 else 1e3)))
    truth = random() * scale * torch.exp(random() * spread)
    truth *= (random().abs() > draw(st.sampled_from((0.0, 0.0, 0.5, 10.0)))).double()
    eps = torch.finfo(dtype).eps

    def side() -> torch.Tensor:
        relative = eps * 2.0 ** draw(st.sampled_from((-3, -3, -2, -1, 0, 1, 2, 5, 9, 14)))
        absolute = eps * scale * draw(st.sampled_from((0.0, 0.0, 0.0, 1.0, 30.0, 1000.0)))
        made = truth * (1 + random() * relative) + random() * absolute
        if draw(st.integers(0, 9)) == 0:
            made[draw(st.integers(0, count - 1))] = draw(st.sampled_from((math.nan, math.inf, 0.0, 1.0)))
        return made.to(dtype)

    ref = side()
    return ref, ref.clone() if draw(st.booleans()) else side(), truth
