"""Single ops in the reference run: ops written in terms of others, and random draws that are replayed.

The eager kernels of higher-order ops raise under a dispatch mode, and their autograd formulas trace the
branches again; run as ordinary code, the branches are recorded by autograd like everything else.
Arguments that only some releases pass (which operands a branch writes to) are not used: the branch writes to
them itself. Of ops without a float64 kernel only those are here that a captured graph can name and a
decomposition table does not cover: fused attention on an accelerator, scaled matrix products, products with a
dtype of their own.

The same seed gives other numbers in float64 than in float32, so the reference cannot draw its own. It replays
the recorded results of the eager run, widened: drawn numbers are data, as inputs are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from torchrepro.judge.execute import call_as_it_asks
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.modes import TorchDispatchMode, disable_current_modes
from torchrepro.torch_api.ops import DispatchKey, HigherOrderOperator, has_kernel, op_name, schema_of


def has_plain_form(op: Any) -> bool:
    """Return whether `run_plainly` can run the op; the others are run by their transform (vmap, grad)."""
    return op.name() in _PLAIN or _eager_kernel(op) is not None


def run_plainly(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a higher-order op under the modes that are active now."""
    run = _PLAIN.get(op.name()) or _eager_kernel(op)
    if run is None:
        raise ReferenceUnavailable(f"the higher-order op {op.name()} has no eager form to run in float64")
    return run(*args, **kwargs)


class OpMode(TorchDispatchMode):
    """Sees every single op, those of higher-order ops included: they are run as plain code."""

    supports_higher_order_operators = True
    run_op: Callable[[Any, Any, Any, Any], Any]
    """Run an op and return its result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            with self:
                return run_plainly(func, args, kwargs or {})
        return self.run_op(func, types, args, kwargs or {})


def _eager_kernel(op: Any) -> Callable[..., Any] | None:
    """Return the op's own eager implementation. Checked on torch 2.11 to 2.15 (`py_kernels`)."""
    keys = (DispatchKey.CompositeExplicitAutograd, DispatchKey.BackendSelect, DispatchKey.CPU)
    return next((op.py_kernels[key] for key in keys if key in op.py_kernels), None)


def _while_loop(cond_fn: Any, body_fn: Any, carried: Any, additional: Any = (), *_: Any, **__: Any) -> Any:
    values = tuple(carried)
    while bool(cond_fn(*values, *additional)):
        values = tuple(body_fn(*values, *additional))
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)


def _scan(combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = (), **_: Any) -> Any:
    carry, rows = list(init), []
    for i in range(xs[0].shape[0] if xs else 0):
        result = list(combine_fn(*carry, *(x[i] for x in xs), *additional_inputs))
        carry, row = result[: len(carry)], result[len(carry) :]
        rows.append(row)
    return (*carry, *(torch.stack(column) for column in zip(*rows, strict=True)))


def _associative_scan(combine_fn: Any, xs: Any, additional_inputs: Any = (), **_: Any) -> Any:
    """Scan from left to right: in float64 the order of an associative operation does not matter."""
    rows = [[x[0] for x in xs]]
    for i in range(1, xs[0].shape[0]):
        rows.append(list(combine_fn(*rows[-1], *(x[i] for x in xs), *additional_inputs)))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _map(function: Any, xs: Any, pos_args: Any = (), **_: Any) -> Any:
    rows = [function(*(x[i] for x in xs), *pos_args) for i in range(xs[0].shape[0])]
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows)
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _out_dtype(op: Any, output_dtype: torch.dtype, *args: Any) -> Any:
    """Run the op on arguments that were converted to the wider dtype first."""
    return op(*(arg.to(output_dtype) if isinstance(arg, torch.Tensor) else arg for arg in args))


_PLAIN: dict[str, Callable[..., Any]] = {
    "cond": lambda pred, true_fn, false_fn, operands=(), **_: (true_fn if pred else false_fn)(*operands),
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": _associative_scan,
    "map_impl": _map,
    "invoke_subgraph": lambda subgraph, identifier, *operands: call_as_it_asks(subgraph, operands, {}),
    "invoke_quant": lambda function, *operands, **_: function(*operands),
    "invoke_quant_packed": lambda function, *operands, **_: function(*operands),
    "foreach_map": lambda function, *operands, **_: function(*operands),
    "strict_mode": lambda function, operands: function(*operands),
    "hints_wrapper": lambda body, args, kwargs, hints: body(*args, **kwargs),
    "out_dtype": _out_dtype,
}


aten = torch.ops.aten


def _factor(query: torch.Tensor, scale: float | None) -> float:
    return scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])


def _attend(
    query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    """Return the scores before the softmax, shape (..., queries, keys)."""
    scores = query @ key.transpose(-2, -1) * _factor(query, scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores


def _backward(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key, value and bias from the inputs (what forward kept is narrower)."""
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


def _attention(op: Any) -> Callable[..., tuple[Any, ...]]:
    """Return a plain form of a fused attention op, forward or backward, with the signature of its schema.

    Results that only say how the kernel ran (lengths, seeds, a mask for debugging) are placeholders.
    """
    names = [argument.name for argument in schema_of(op).arguments]

    def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        bias: Any = given.get("attn_bias")
        options = given.get("is_causal", False), given.get("scale")
        if names[0].startswith("grad_out"):
            *gradients, of_bias = _backward(given[names[0]], query, key, value, bias, *options)
            if "grad_input_mask" not in given:
                return tuple(gradients)
            wants_bias = given["grad_input_mask"][3] and bias is not None
            return *gradients, of_bias.sum_to_size(bias.shape) if wants_bias else None
        scores = _attend(query, key, bias, *options)
        out, lse = torch.softmax(scores, dim=-1) @ value, torch.logsumexp(scores, dim=-1)
        seed = torch.empty((), dtype=torch.int64, device=query.device)
        if "return_debug_mask" not in names:
            return out, lse, seed, seed.clone()
        mask = torch.empty(0, dtype=query.dtype, device=query.device)
        lse = lse.unsqueeze(-1) if "cudnn" in op.name() else lse
        return out, lse, None, None, query.shape[-2], key.shape[-2], seed, seed.clone(), mask

    return run


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


def _addmm(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Multiply and add in two steps on a GPU: the kernel that does both is half as fast.

    Measured in float64 on an H200 with CUDA 13: 30 TFLOP/s with the bias, 57 without.
    """
    if not a.is_cuda:
        with disable_current_modes():  # under which this form would be called again
            return torch.addmm(bias, a, b, beta=beta, alpha=alpha)
    product = a.mm(b)
    if alpha != 1:
        product.mul_(alpha)
    return product.add_(bias, alpha=beta) if beta else product


def _without_out_dtype(product: Callable[..., Any], matrices: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("out_dtype", None)
        return product(*args[:matrices], **kwargs)

    return run


@lru_cache(maxsize=1)
def float64_forms() -> dict[Any, Callable[..., Any]]:
    """Return functions with an op's arguments and results, by overload; other ops are tried themselves.

    An op that a release lacks has no entry.
    """
    kernels = ("flash", "efficient", "cudnn")
    ways = [f"{kernel}_attention{way}" for kernel in kernels for way in ("", "_backward")]
    fused = [f"_scaled_dot_product_{way}" for way in ways]
    found = {op: _attention(op) for op in (_overload(name, "default") for name in fused) if op is not None}
    rows: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("_scaled_mm", "default", _scaled_mm),
        ("addmm", "default", _addmm),
        ("mm", "dtype", _without_out_dtype(aten.mm.default, 2)),
        ("bmm", "dtype", _without_out_dtype(aten.bmm.default, 2)),
        ("addmm", "dtype", _without_out_dtype(aten.addmm.default, 3)),
        ("baddbmm", "dtype", _without_out_dtype(aten.baddbmm.default, 3)),
    )
    found.update({_overload(name, overload): form for name, overload, form in rows})
    return found


def _overload(name: str, overload: str) -> Any:
    packet = getattr(aten, name, None)
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else None


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One random op and what came out of it: its results and the arguments that it wrote to."""

    op: str
    results: tuple[torch.Tensor, ...]


Draws = tuple[Draw, ...]


class RecordRandom(OpMode):
    """Records, around an eager run, the results of each random op, in order, and the dtypes computed in."""

    def __init__(self) -> None:
        super().__init__()
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
    def is_seeded(self) -> bool:
        """Whether it drew where compiled code computes the numbers from a seed: they are never the same."""
        return any(draw.op in _SEEDED for draw in self._draws)

    @property
    def coarsest_dtype(self) -> torch.dtype | None:
        """The floating dtype with the fewest digits that any op gave a result in."""
        floating = [dtype for dtype in self._dtypes if dtype.is_floating_point]
        return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=None)

    def run_op(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
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
            kept = tuple(
                tensor.detach().clone() for tensor in written_or_returned(func, args, kwargs, result)
            )
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
        targets = written_or_returned(func, args, kwargs, result)
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
    aten.native_dropout: _dropout,
    aten._fused_dropout: _fused_dropout,
    aten.rrelu_with_noise: _rrelu,
    aten.rrelu_with_noise_functional: _rrelu,
}
"""Ops that draw and compute at once: the result follows in float64 from the recorded mask."""


_SEEDED = frozenset({"prims::inductor_random", "prims::inductor_randint"})
"""Ops that compute numbers from a seed when compiled, and draw from a generator in eager; without a tag."""


@lru_cache(maxsize=4096)
def is_random_op(func: Any) -> bool:
    """Return whether the op may take numbers from a generator."""
    if func.name() in _SEEDED:
        return True
    returns_tensors = any("Tensor" in str(item.type) for item in schema_of(func).returns)
    return torch.Tag.nondeterministic_seeded in func.tags and returns_tensors


@lru_cache(maxsize=4096)
def is_composite(func: Any) -> bool:
    """Return whether the op is only ever a sequence of other ops. Checked on torch 2.11 to 2.15."""
    return has_kernel(func.name(), DispatchKey.CompositeImplicitAutograd)


def draws_now(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether this call of a random op draws: dropout in evaluation or of probability 0 does not."""
    values = dict(zip((item.name for item in schema_of(func).arguments), args, strict=False)) | kwargs
    if values.get("train") is False or (op_name(func).startswith("rrelu") and not values.get("training")):
        return False
    return not any(name in values and values[name] == 0 for name in ("dropout_p", "dropout")) and not (
        "dropout_p" in _argument_names(func) and "dropout_p" not in values
    )


@lru_cache(maxsize=4096)
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(item.name for item in schema_of(func).arguments)


def written_or_returned(func: Any, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """Return the tensors that hold what an op gave: the results, then written arguments not among them."""
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    for position, item in enumerate(schema_of(func).arguments):
        if item.alias_info is not None and item.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(item.name)
            for written in value if isinstance(value, (tuple, list)) else (value,):
                if not any(written is known for known in results):
                    results.append(written)
    return [item for item in results if isinstance(item, torch.Tensor)]


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return an op's arguments with every tensor changed; lists, tuples and dicts are the only containers.

    Much cheaper than a pytree map, and it runs several times for each op.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([map_tensors(item, change) for item in value])
    if kind is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value
