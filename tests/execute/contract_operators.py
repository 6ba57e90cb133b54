"""Custom operators that break one promise each, and a healthy twin of each: `NAME` and `NAME_healthy`."""

from __future__ import annotations

import itertools
from typing import Any

import torch

Tensor = torch.Tensor
_CALLS = itertools.count(1)


def _scale(x: Tensor) -> Tensor:
    return x * 2


def _double(ctx: Any, grad: Tensor) -> Tensor:
    return grad * 2


def _register(name: str, kernel: Any, fake: Any, schema: str = "(Tensor x) -> Tensor") -> Any:
    op = torch.library.custom_op(f"contracts::{name}", kernel, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


def transposed(x: Tensor) -> Tensor:
    return (x * 2).t().contiguous().t()


def same(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def fake_transposed(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[::-1]).t()


_register("stride", transposed, same)
_register("stride_healthy", transposed, fake_transposed)


def fake_of_another_shape(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] + 1)


_register("shape", _scale, fake_of_another_shape)
_register("shape_healthy", _scale, same)


def fake_of_another_dtype(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.float64)


_register("dtype", _scale, fake_of_another_dtype)
_register("dtype_healthy", lambda x: (x * 2).double(), fake_of_another_dtype)


def fake_on_another_device(x: Tensor) -> Tensor:
    return torch.empty_like(x, device="cuda:0")


_register("device", _scale, fake_on_another_device)
_register("device_healthy", _scale, same)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x + 2


def fake_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


PAIR = "(Tensor x) -> (Tensor, Tensor)"
LIST = "(Tensor x) -> Tensor[]"
_register("outputs", lambda x: [x + 1, x + 2], lambda x: [torch.empty_like(x)], LIST)
_register("outputs_healthy", lambda x: [x + 1, x + 2], lambda x: [torch.empty_like(x)] * 2, LIST)


def fake_that_raises(x: Tensor) -> Tensor:
    raise ValueError("not for this size")


_register("fake", _scale, fake_that_raises)
_register("fake_healthy", _scale, same)


# `torch.library.custom_op` itself looks at aliasing, so these are registered as older libraries do.
_library = torch.library.Library("contracts", "FRAGMENT")


def _define(name: str, schema: str, kernel: Any, fake: Any) -> None:
    _library.define(f"{name}{schema}")
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"contracts::{name}", fake, lib=_library)


def adds_in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


_define("mutation", "(Tensor x) -> Tensor", adds_in_place, same)
_define("mutation_healthy", "(Tensor(a!) x) -> Tensor", adds_in_place, same)
# What is declared and does not happen is no violation: an operator may write or not.
_define("declared_healthy", "(Tensor(a!) x) -> Tensor", _scale, same)

_define("alias", "(Tensor x) -> Tensor", lambda x: x.view(-1), lambda x: x.new_empty(x.numel()))
_define("alias_healthy", "(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1), lambda x: x.view(-1))


def rows(x: Tensor) -> list[Tensor]:
    return list(x.unbind())


def new_rows(x: Tensor) -> list[Tensor]:
    return [x.new_empty(row.shape) for row in x]


_define("list", "(Tensor x) -> Tensor[]", rows, new_rows)
_define("list_healthy", "(Tensor(a -> *) x) -> Tensor(a)[]", rows, rows)

_define("sparse", "(Tensor x) -> Tensor", lambda x: x.to_sparse(), lambda x: x.to_sparse())


def twins(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y[:]


_define("two_results", PAIR, twins, fake_pair)
_define("two_results_healthy", PAIR, pair, fake_pair)


def counts_its_calls(x: Tensor) -> Tensor:
    return x + next(_CALLS)


def draws(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


_register("determinism", counts_its_calls, same)
_register("determinism_healthy", draws, same)  # from torch's generators: the same for the same seed


def square(x: Tensor) -> Tensor:
    return x * x


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def wrong_backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * x


def right_backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * x * 2


_register("backward", square, same).register_autograd(wrong_backward, setup_context=keep)
_register("backward_healthy", square, same).register_autograd(right_backward, setup_context=keep)


def halves_as_float32(x: Tensor) -> Tensor:
    """Refuse every dtype but float32, as many kernels do."""
    if x.dtype is not torch.float32:
        raise RuntimeError("expected float32")
    return x * x


_register("narrow", halves_as_float32, same).register_autograd(wrong_backward, setup_context=keep)
_register("narrow_healthy", halves_as_float32, same).register_autograd(right_backward, setup_context=keep)


def rounded(x: Tensor) -> Tensor:
    return (x * 4).round() / 4


def straight_through(ctx: Any, grad: Tensor) -> Tensor:
    return grad


def positive(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def where_positive(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * (x > 0)


_register("straight_through", rounded, same).register_autograd(straight_through)
_register("positive", positive, same).register_autograd(where_positive, setup_context=keep)


# Results that help backward and have no gradient of their own, as in norms (rstd) and attention (logsumexp).
def with_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    norm = x.square().sum(-1, keepdim=True).sqrt()
    return x / norm, norm


def keep_statistics(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*output)


def keep_apart(ctx: Any, inputs: Any, output: Any) -> None:
    keep_statistics(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def backward_of_the_first(ctx: Any, grad: Tensor, ignored: Tensor) -> Tensor:
    unit, norm = ctx.saved_tensors
    return (grad - unit * (grad * unit).sum(-1, keepdim=True)) / norm


def wrong_for_the_first(ctx: Any, grad: Tensor, ignored: Tensor) -> Tensor:
    return grad / ctx.saved_tensors[1]


def fake_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1)


for _name, _backward, _keep in (
    ("statistics", wrong_for_the_first, keep_statistics),
    ("statistics_healthy", backward_of_the_first, keep_statistics),
    ("apart", wrong_for_the_first, keep_apart),
    ("apart_healthy", backward_of_the_first, keep_apart),
):
    _register(_name, with_statistics, fake_statistics, PAIR).register_autograd(_backward, setup_context=_keep)


# Random numbers from torch's generators: other ones in each run, and in each dtype.
def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.rand_like(x) > 0.5
    return x * mask * 2, mask


def fake_dropped(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def unscaled(ctx: Any, grad: Tensor, ignored: Tensor) -> Tensor:
    return grad * ctx.saved_tensors[1]


def scaled(ctx: Any, grad: Tensor, ignored: Tensor) -> Tensor:
    return grad * ctx.saved_tensors[1] * 2


for _name, _backward in (("dropout", unscaled), ("dropout_healthy", scaled)):
    _register(_name, dropped, fake_dropped, PAIR).register_autograd(_backward, setup_context=keep_statistics)


def reversed_gradient(ctx: Any, grad: Tensor) -> Tensor:
    return -grad


_register("reversal", lambda x: x.clone(), same).register_autograd(reversed_gradient)
