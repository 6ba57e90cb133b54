"""Ops that have no float64 kernel, written out in ops that have one.

Only what a captured graph can name and a decomposition table does not cover: fused attention on an
accelerator, scaled matrix products, products with a dtype of their own. Everything else is
found out by trying.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from torchrepro.torch_api.ops import decomposition_of

aten = torch.ops.aten


def float64_form(func: Any) -> Callable[..., Any] | None:
    """A function with the arguments and results of this op, or None where the op itself is to be tried."""
    return _forms().get(func)


def decomposition(func: Any) -> Callable[..., Any] | None:
    """Torch's own rewriting of an op in simpler ones. Checked on torch 2.11 to 2.15."""
    return decomposition_of(func)


def _factor(query: torch.Tensor, scale: float | None) -> float:
    return scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])


def _attend(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    """Scores before the softmax, shape (..., queries, keys)."""
    scores = query @ key.transpose(-2, -1) * _factor(query, scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores


def _forward(
    query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _attend(query, key, bias, causal, scale)
    return torch.softmax(scores, dim=-1) @ value, torch.logsumexp(scores, dim=-1)


def _backward(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key, value and bias, from the inputs alone (what forward kept is narrower)."""
    factor = _factor(query, scale)
    weights = torch.softmax(_attend(query, key, bias, causal, scale), dim=-1)
    grad_weights = grad @ value.transpose(-2, -1)
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    return (
        grad_scores @ key * factor,
        grad_scores.transpose(-2, -1) @ query * factor,
        weights.transpose(-2, -1) @ grad,
        grad_scores,
    )


def _rng_placeholders(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    empty = torch.empty((), dtype=torch.int64, device=like.device)
    return empty, empty.clone()


def _flash(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out, lse = _forward(query, key, value, None, is_causal, scale)
    none = torch.empty(0, dtype=query.dtype, device=query.device)
    return (out, lse, None, None, query.shape[-2], key.shape[-2], *_rng_placeholders(query), none)


def _flash_backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    lse: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *_: Any,
    scale: float | None = None,
    **__: Any,
) -> tuple[Any, ...]:
    return _backward(grad, query, key, value, None, is_causal, scale)[:3]


def _efficient(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out, lse = _forward(query, key, value, attn_bias, is_causal, scale)
    return (out, lse, *_rng_placeholders(query))


def _efficient_backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    out: Any,
    lse: Any,
    seed: Any,
    offset: Any,
    dropout_p: float,
    grad_input_mask: Any,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    dq, dk, dv, dbias = _backward(grad, query, key, value, attn_bias, is_causal, scale)
    wants_bias = grad_input_mask[3] and attn_bias is not None
    return dq, dk, dv, dbias.sum_to_size(attn_bias.shape) if wants_bias else None


def _cudnn(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out, lse = _forward(query, key, value, attn_bias, is_causal, scale)
    none = torch.empty(0, dtype=query.dtype, device=query.device)
    rng = _rng_placeholders(query)
    return (out, lse.unsqueeze(-1), None, None, query.shape[-2], key.shape[-2], *rng, none)


def _cudnn_backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    lse: Any,
    seed: Any,
    offset: Any,
    attn_bias: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return _backward(grad, query, key, value, attn_bias, is_causal, scale)[:3]


def _scaled_mm(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    if scale_a.numel() not in (1, a.shape[0]) or scale_b.numel() not in (1, b.shape[1]):
        raise NotImplementedError("block-wise scales of _scaled_mm have no float64 form")
    out: torch.Tensor = (a * scale_a.reshape(-1, 1)) @ (b * scale_b.reshape(1, -1))
    if bias is not None:
        out = out + bias
    return out if scale_result is None else out * scale_result


def _without_out_dtype(product: Callable[..., Any], matrices: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("out_dtype", None)
        return product(*args[:matrices], **kwargs)

    return run


@lru_cache(maxsize=1)
def _forms() -> dict[Any, Callable[..., Any]]:
    """By overload; a release that lacks an op simply lacks the row."""
    rows: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("_scaled_dot_product_flash_attention", "default", _flash),
        ("_scaled_dot_product_flash_attention_backward", "default", _flash_backward),
        ("_scaled_dot_product_efficient_attention", "default", _efficient),
        ("_scaled_dot_product_efficient_attention_backward", "default", _efficient_backward),
        ("_scaled_dot_product_cudnn_attention", "default", _cudnn),
        ("_scaled_dot_product_cudnn_attention_backward", "default", _cudnn_backward),
        ("_scaled_mm", "default", _scaled_mm),
        ("mm", "dtype", _without_out_dtype(aten.mm.default, 2)),
        ("bmm", "dtype", _without_out_dtype(aten.bmm.default, 2)),
        ("addmm", "dtype", _without_out_dtype(aten.addmm.default, 3)),
        ("baddbmm", "dtype", _without_out_dtype(aten.baddbmm.default, 3)),
    )
    return {
        getattr(getattr(aten, op), overload): form
        for op, overload, form in rows
        if hasattr(aten, op) and overload in getattr(aten, op).overloads()
    }
