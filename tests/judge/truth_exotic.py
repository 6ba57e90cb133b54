"""Rows of the truth table on dtypes and layouts beyond plain arrays, and on the modes of `same`."""

from __future__ import annotations

import torch
from truth_pair import NAN, T, bad, good, randn

from torchrepro.nouns.verdict import Difference

EXOTIC = [
    pair
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    for dtype in [getattr(torch, name)]
    for pair in (
        good(f"{name}, equal", lambda dtype=dtype: (T([1.0, 2, 4]).to(dtype), T([1.0, 2, 4]).to(dtype))),
        bad(f"{name}, wrong", lambda dtype=dtype: (T([1.0, 2, 4]).to(dtype), T([1.0, 16, 4]).to(dtype))),
    )
]
EXOTIC += [
    good(
        "fp8, one ulp from rounding",
        lambda: (
            T([1.0, 1.125]).to(torch.float8_e4m3fn),
            T([1.125, 1.125]).to(torch.float8_e4m3fn),
            T([1.0624, 1.125]).double(),
        ),
    ),
    bad(
        "packed fp4",
        lambda: (
            T([17], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            T([18], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        ),
    ),
    good("CSR", lambda: (torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse_csr())),
    bad("CSR values", lambda: (torch.eye(3).to_sparse_csr(), (2 * torch.eye(3)).to_sparse_csr())),
    bad("CSR columns", lambda: (torch.eye(3).to_sparse_csr(), torch.eye(3).flip(0).to_sparse_csr())),
    good("CSC", lambda: (torch.eye(3).to_sparse_csc(), torch.eye(3).to_sparse_csc())),
    bad("BSR values", lambda: (torch.eye(4).to_sparse_bsr((2, 2)), (2 * torch.eye(4)).to_sparse_bsr((2, 2)))),
    good("BSC", lambda: (torch.eye(4).to_sparse_bsc((2, 2)), torch.eye(4).to_sparse_bsc((2, 2)))),
    good(
        "COO in another order",
        lambda: (
            torch.sparse_coo_tensor([[0, 2]], [1.0, 2], (3,)),
            torch.sparse_coo_tensor([[2, 0]], [2.0, 1], (3,)),
        ),
    ),
    good(
        "COO with the truth",
        lambda: (torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), torch.eye(3).double().to_sparse()),
    ),
    bad(
        "COO values",
        lambda: (
            torch.eye(3).to_sparse(),
            (1.05 * torch.eye(3)).to_sparse(),
            torch.eye(3).double().to_sparse(),
        ),
    ),
    bad("sparse against dense", lambda: (torch.eye(3).to_sparse(), torch.eye(3)), Difference.LAYOUT),
    good("quantised", lambda: (_quantised(0.1), _quantised(0.1))),
    bad("another scale", lambda: (_quantised(0.1), _quantised(0.2))),
    bad("another quantised value", lambda: (_quantised(0.1, 1.0), _quantised(0.1, 1.1))),
    bad("per channel scales", lambda: (_per_channel(0.1), _per_channel(0.3))),
    good("per channel", lambda: (_per_channel(0.1), _per_channel(0.1))),
    good("jagged", lambda: (_jagged(1.0), _jagged(1.0))),
    bad("jagged values", lambda: (_jagged(1.0), _jagged(1.5))),
    good("MKL-DNN layout", lambda: (torch.ones(2, 3).to_mkldnn(), torch.ones(2, 3).to_mkldnn())),
    bad("MKL-DNN values", lambda: (torch.ones(2, 3).to_mkldnn(), torch.zeros(2, 3).to_mkldnn())),
    good("complex, conjugated lazily", lambda: (T([1 + 2j]).conj(), T([1 - 2j]))),
    bad(
        "complex, conjugate forgotten",
        lambda: (T([1 + 2j]).conj(), T([1 + 2j]), T([1 - 2j], dtype=torch.complex128)),
    ),
    good("negated lazily", lambda: (torch._neg_view(T([1.0])), T([-1.0]))),
    good("expanded", lambda: (T([1.0]).expand(1000), torch.ones(1000), torch.ones(1000).double())),
    good("empty", lambda: (torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 3).double())),
    bad("empty of another shape", lambda: (torch.zeros(0, 3), torch.zeros(3, 0)), Difference.SHAPE),
    bad("complex half", lambda: (T([1 + 1j]).to(torch.complex32), T([1 + 3j]).to(torch.complex32))),
]


def _quantised(scale: float, value: float = 1.0) -> torch.Tensor:
    return torch.quantize_per_tensor(T([value, 2.0]), scale, 0, torch.qint8)


def _per_channel(scale: float) -> torch.Tensor:
    return torch.quantize_per_channel(torch.ones(2, 2), T([scale, 0.1]), T([0, 0]), 0, torch.qint8)


def _jagged(value: float) -> torch.Tensor:
    return torch.nested.nested_tensor([T([value, 2.0]), T([3.0])], layout=torch.jagged)


MODES = [
    good("within the tolerance", lambda: (T([1.0, 2]), T([1.05, 2.1])), tol=0.1),
    bad("beyond the tolerance", lambda: (T([1.0, 2]), T([1.3, 2.1])), tol=0.1),
    bad("the tolerance replaces the truth", lambda: (T([1.0]), T([2.0]), T([2.0]).double()), tol=0.1),
    bad("no tolerance at all", lambda: (T([1.0]), T([1.0 + 2**-23])), tol=0.0),
    good("no tolerance needed", lambda: (T([1.0]), T([1.0])), tol=0.0),
    bad("strict: one ulp", lambda: (T([1.0]), T([1.0 + 2**-23])), strict=True),
    bad("strict: the sign of zero", lambda: (T([0.0]), T([-0.0])), strict=True),
    good("the sign of zero otherwise", lambda: (T([0.0]), T([-0.0]))),
    good("strict: equal", lambda: (T([1.0, NAN]), T([1.0, NAN])), strict=True),
    good(
        "strict: the payload of a NaN",
        lambda: (
            T([0x7FC00000], dtype=torch.int32).view(torch.float32),
            T([0x7FC00001], dtype=torch.int32).view(torch.float32),
        ),
        strict=True,
    ),
    good("the angle: scaled", lambda: (randn(100).float(), randn(100).float() * 3), cos_similarity=True),
    bad("the angle: turned", lambda: (randn(100).float(), randn(100, seed=1).float()), cos_similarity=True),
    bad(
        "the angle: new NaN", lambda: (T([1.0, 2]), T([1.0, NAN])), Difference.NON_FINITE, cos_similarity=True
    ),
    good("the angle: both zero", lambda: (torch.zeros(3), torch.zeros(3)), cos_similarity=True),
    bad("the angle: one zero", lambda: (torch.ones(3), torch.zeros(3)), cos_similarity=True),
    bad(
        "the angle: a limit of one's own", lambda: (T([1.0, 0]), T([1.0, 0.1])), cos_similarity=True, tol=1e-3
    ),
]
