"""A library of custom operators: `gram` lies about the strides of its result, `honest_gram` does not."""

from typing import Any

import torch


def transposed_gram(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute x @ x.T per batch, scaled, as a kernel does that writes its result transposed."""
    return (torch.bmm(x, x.transpose(1, 2)) * scale).transpose(1, 2).contiguous().transpose(1, 2)


def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    (x,) = ctx.saved_tensors
    return torch.bmm(grad + grad.transpose(1, 2), x) * ctx.scale, None


def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


@torch.library.custom_op("fastops::gram", mutates_args=())
def gram(x: torch.Tensor, scale: float) -> torch.Tensor:
    return transposed_gram(x, scale)


@gram.register_fake
def gram_fake(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1], x.shape[1])


@torch.library.custom_op("fastops::honest_gram", mutates_args=())
def honest_gram(x: torch.Tensor, scale: float) -> torch.Tensor:
    return transposed_gram(x, scale)


@honest_gram.register_fake
def honest_gram_fake(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1], x.shape[1]).transpose(1, 2)


gram.register_autograd(backward, setup_context=setup_context)
honest_gram.register_autograd(backward, setup_context=setup_context)
