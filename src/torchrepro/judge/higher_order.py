"""Higher-order ops as the plain Python that they stand for, so that a mode sees the ops inside them.

Their own eager kernels refuse to run under a dispatch mode, and their autograd formulas trace the branches
anew; run as ordinary code, the branches are recorded by autograd like everything else. Arguments that only
some releases pass (which operands a branch writes to) are of no use here: the branch writes to them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.ops import DispatchKey


def has_plain_form(op: Any) -> bool:
    """Whether `run_plainly` can run it; the others belong to a transform (vmap, grad) that knows how."""
    return op.name() in _PLAIN or _eager_kernel(op) is not None


def run_plainly(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a higher-order op under the modes that are active now."""
    run = _PLAIN.get(op.name()) or _eager_kernel(op)
    if run is None:
        raise ReferenceUnavailable(f"the higher-order op {op.name()} has no eager form to run in float64")
    return run(*args, **kwargs)


def _eager_kernel(op: Any) -> Callable[..., Any] | None:
    """The op's own eager implementation. Checked on torch 2.11 to 2.15 (`py_kernels`)."""
    keys = DispatchKey
    for key in (keys.CompositeExplicitAutograd, keys.BackendSelect, keys.CPU):
        if key in op.py_kernels:
            kernel: Callable[..., Any] = op.py_kernels[key]
            return kernel
    return None


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = (), **_: Any) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


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
    """From left to right: in float64 the order of an associative operation is of no account."""
    rows = [[x[0] for x in xs]]
    for i in range(1, xs[0].shape[0]):
        rows.append(list(combine_fn(*rows[-1], *(x[i] for x in xs), *additional_inputs)))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _map(function: Any, xs: Any, pos_args: Any = (), **_: Any) -> Any:
    rows = [function(*(x[i] for x in xs), *pos_args) for i in range(xs[0].shape[0])]
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows)
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _invoke_subgraph(subgraph: Any, identifier: Any, *operands: Any) -> Any:
    return subgraph(list(operands)) if getattr(subgraph, "_boxed_call", False) else subgraph(*operands)


def _call_with_operands(function: Any, *operands: Any, **_: Any) -> Any:
    return function(*operands)


def _strict_mode(function: Any, operands: Any) -> Any:
    return function(*operands)


def _hints_wrapper(body: Any, args: Any, kwargs: Any, hints: Any) -> Any:
    return body(*args, **kwargs)


def _out_dtype(op: Any, output_dtype: torch.dtype, *args: Any) -> Any:
    """The op on arguments that were converted to the wider dtype first."""
    widened = [arg.to(output_dtype) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return op(*widened)


_PLAIN: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": _associative_scan,
    "map_impl": _map,
    "invoke_subgraph": _invoke_subgraph,
    "invoke_quant": _call_with_operands,
    "invoke_quant_packed": _call_with_operands,
    "foreach_map": _call_with_operands,
    "strict_mode": _strict_mode,
    "hints_wrapper": _hints_wrapper,
    "out_dtype": _out_dtype,
}
