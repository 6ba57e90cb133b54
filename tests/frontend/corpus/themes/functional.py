"""Functions of `torch` and `torch.nn.functional`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import relu

from tests.frontend.corpus.registry import case


@case
def creation(a, b):
    return (
        torch.zeros(2, 3),
        torch.ones_like(a),
        torch.full((2,), 3.0),
        torch.arange(5),
        torch.linspace(0, 1, 4),
        torch.eye(3),
        torch.tensor([1, 2, 3]),
        torch.empty_like(b).fill_(1),
        torch.zeros_like(b, dtype=torch.int64),
    )


@case
def creation_from_sizes(a, b):
    n, m = a.shape
    return (
        torch.arange(n)[:, None] + torch.arange(m),
        torch.zeros(a.shape),
        torch.ones(*b.shape),
        torch.full_like(a, n),
    )


@case
def tensors_from_python_values(a, b):
    return (
        torch.tensor(3.5) * a,
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        torch.as_tensor([1, 2]),
        torch.scalar_tensor(2.0),
    )


@case
def activations(a, b):
    return (
        F.relu(a),
        F.gelu(a),
        F.silu(b),
        F.softmax(a, dim=-1),
        F.log_softmax(b, -1),
        F.leaky_relu(a, 0.2),
        F.elu(b),
    )


@case
def activation_by_imported_name(a, b):
    return relu(a) + relu(b, inplace=False)


@case
def activation_from_a_table(a, b):
    table = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}
    return table["gelu"](a) + table["tanh"](b)


@case
def linear_and_norms(a, b):
    weight = torch.ones(4, 4)
    return (
        F.linear(a, weight),
        F.layer_norm(b, (4,)),
        F.normalize(a, dim=1),
        F.layer_norm(a, [4], torch.ones(4)),
    )


@case
def attention_by_hand(a, b):
    scores = a @ b.t() / math.sqrt(a.shape[-1])
    return F.softmax(scores, dim=-1) @ b


@case
def attention_of_torch(a, b):
    q, k = a[None, None], b[None, None]
    return F.scaled_dot_product_attention(q, k, k, is_causal=True)


@case
def dropout_with_training_off(a, b):
    return F.dropout(a, 0.5, training=False) + F.dropout(b, p=0.0)


@case
def dropout_with_training_on(a, b):
    return F.dropout(a, 0.5, training=True) + b


@case
def random_tensors(a, b):
    return (
        a + torch.randn(4),
        torch.rand_like(b),
        torch.randint(0, 5, (2, 2)),
        torch.bernoulli(torch.full((3,), 0.5)),
    )


@case
def losses(a, b):
    target = torch.tensor([0, 1, 2])
    return (
        F.mse_loss(a, b),
        F.cross_entropy(a[:3], target),
        F.l1_loss(a, b, reduction="sum"),
        F.smooth_l1_loss(a, b),
    )


@case
def convolutions(a, b):
    kernel = torch.ones(1, 1, 2)
    return F.conv1d(a[:, None], kernel), F.conv1d(b[:, None], kernel, padding=1, stride=2)


@case
def pooling_and_interpolation(a, b):
    image = a[None, None]
    return (
        F.max_pool1d(a, 2),
        F.avg_pool1d(b, 2),
        F.interpolate(image, scale_factor=2),
        F.adaptive_avg_pool1d(a, 1),
    )


@case
def padding(a, b):
    return F.pad(a, (1, 2)), F.pad(b, (0, 0, 1, 0), value=-1.0), F.pad(a[None], (1, 1), mode="reflect")


@case
def embedding_and_one_hot(a, b):
    index = torch.tensor([0, 2, 1])
    return F.embedding(index, a), F.one_hot(index, 4), F.one_hot(index, num_classes=5) + 0


@case
def where_and_clamp(a, b):
    return torch.where(a > b, a, b), torch.where(a > 0, 1.0, 0.0), torch.clamp(a, min=b), torch.maximum(a, b)


@case
def joining(a, b):
    return (
        torch.cat((a, b)),
        torch.stack([a, b]),
        torch.cat([a, b], dim=-1),
        torch.concat([a] * 3),
        torch.dstack([a, b]),
    )


@case
def splitting(a, b):
    return (
        torch.split(a, 2, dim=1),
        torch.chunk(b, 2, 1),
        torch.unbind(a),
        torch.tensor_split(b, (1, 3), dim=1),
    )


@case
def sorting(a, b):
    values, index = torch.sort(a, dim=1)
    top = torch.topk(b, k=2)
    return values, index, top.values, top[1], torch.argsort(a)


@case
def cumulative(a, b):
    return torch.cumsum(a, 0), torch.cumprod(b, dim=1), torch.cummax(a, dim=0).values, torch.diff(b)


@case
def meshgrid_and_outer(a, b):
    x, y = torch.meshgrid(torch.arange(3), torch.arange(2), indexing="ij")
    return x, y, torch.outer(a[0], b[0]), torch.cartesian_prod(torch.arange(2), torch.arange(2))


@case
def linear_algebra(a, b):
    square = a @ a.t() + torch.eye(a.shape[0]) * 10
    return (
        torch.linalg.norm(a),
        torch.linalg.solve(square, b),
        torch.det(square),
        torch.trace(square),
        torch.inverse(square),
    )


@case
def einsum_of_three(a, b):
    return torch.einsum("ij,ij,ik->k", a, b, a)


@case
def questions_about_tensors(a, b):
    return (
        torch.numel(a),
        torch.is_complex(b),
        torch.broadcast_shapes((3, 1), (1, 4)),
        torch.result_type(a, 1),
    )


@case
def broadcasting(a, b):
    x, y = torch.broadcast_tensors(a[:, None], b[None])
    return x * y, a[:, :1] + b[0], torch.broadcast_to(a[0], (2, 4))


@case
def reduction_functions(a, b):
    return (
        torch.sum(a, dim=0),
        torch.mean(b),
        torch.max(a),
        torch.max(a, b),
        torch.min(b, dim=1),
        torch.var(a, unbiased=False),
    )


@case
def in_place_functional(a, b):
    c = a + 0
    F.relu(c, inplace=True)
    torch.relu_(b)
    return c


@case
def masks_for_attention(a, b):
    n = a.shape[0]
    mask = torch.full((n, n), float("-inf")).triu(1)
    scores = a @ b.t() + mask
    return torch.softmax(scores, -1)


@case
def rotary_embedding(a, b):
    def rotate(x):
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    positions = torch.arange(a.shape[0], dtype=torch.float32)
    frequencies = 1.0 / (10000 ** (torch.arange(0, 4, 2).float() / 4))
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return a * angles.cos() + rotate(a) * angles.sin(), rotate(b)


@case
def functions_with_lists_of_tensors(a, b):
    return torch.stack([x.sum() for x in (a, b)]), torch.block_diag(a, b), torch.add(*[a, b]), sum([a, b, a])


@case
def the_function_in_a_variable(a, b):
    op = torch.add if a.shape[0] < 10 else torch.sub
    return op(a, b)


@case
def functions_of_nn_init(a, b):
    weight = torch.empty(4, 4)
    nn.init.constant_(weight, 0.5)
    return a @ weight, b


@case
def fft(a, b):
    return torch.fft.rfft(a), torch.fft.fft(b).real


@case
def special_functions(a, b):
    return torch.special.expit(a), torch.erf(b), torch.lgamma(a.abs() + 1), torch.logit(torch.sigmoid(b))


@case
def group_and_batch_norm(a, b):
    return (
        F.group_norm(a[..., None], 2),
        F.batch_norm(b, torch.zeros(4), torch.ones(4)),
        F.instance_norm(a[None]),
    )


@case
def multi_output_functions(a, b):
    mean, std = torch.std_mean(a, dim=1)
    return mean, std, torch.aminmax(b), torch.frexp(a), torch.var_mean(b)
