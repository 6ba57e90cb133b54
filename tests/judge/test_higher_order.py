"""Higher-order ops run in float64 inside, and so do their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchrepro.judge.reference import run_in_fp64

torch.manual_seed(0)
X = torch.randn(4, 6)
W = torch.randn(6, 6)
C = torch.randn(6)
X64, W64, C64 = X.double(), W.double(), C.double()
Case = tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]


def _cond(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 1e9, lambda x: x.sin(), lambda x: x.half() @ W.half(), (x,))


def _while_loop(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = (torch.zeros((), dtype=torch.int64), x)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.half().float() / 3), start)[1]


def _map(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as torch_map

    return torch_map(lambda row, c: row.half() * c, x, C)


def _scan(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (carry + row.half(), carry / 3), torch.zeros(6), x)[1]


def _associative_scan(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: a.half() * b, x, 0, combine_mode="generic")


def _flex(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x[None, None], x[None, None], x[None, None], lambda score, b, h, q, k: score + C[q])


def _checkpoint(x: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x, w: (x.half() @ w).sin(), x, W64, use_reentrant=False)


def _running_sums(x: torch.Tensor) -> torch.Tensor:
    before = torch.cat([torch.zeros(1, 6, dtype=torch.float64), x.cumsum(0)[:-1]])
    return before / 3


HIGHER_ORDER: dict[str, Case] = {
    "while_loop": (_while_loop, lambda x: x / 3 / 3 / 3),
    "map": (_map, lambda x: x * C64),
    "scan": (_scan, _running_sums),
    "associative_scan": (_associative_scan, lambda x: x.cumprod(0)),
    "flex_attention": (_flex, lambda x: (F.softmax(x @ x.T / 6**0.5 + C64[:4, None], -1) @ x)[None, None]),
    "checkpoint": (_checkpoint, lambda x: (x @ W64).sin()),
    "cond": (_cond, lambda x: x @ W64),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_higher_order_ops_and_their_gradients_are_in_float64(name: str) -> None:
    function, truth = HIGHER_ORDER[name]
    has_gradient = name != "flex_attention"  # torch has none on the CPU
    x, y = X64.clone().requires_grad_(has_gradient), X64.clone().requires_grad_()

    def forward_and_backward() -> torch.Tensor:
        value = function(x)
        if has_gradient:
            (value * value).sum().backward()
        return value

    reference = run_in_fp64(forward_and_backward)
    expected = truth(y)
    (expected * expected).sum().backward()
    torch.testing.assert_close(reference.value, expected, rtol=1e-12, atol=1e-13)
    if has_gradient:
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-11, atol=1e-12)
