"""Methods of tensors."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


@case
def reshape_family(a, b):
    return a.view(2, -1), a.reshape(-1), a.flatten(), b.unflatten(1, (2, 2)), b.ravel()


@case
def permute_family(a, b):
    return a.transpose(0, 1), a.permute(1, 0), b.t(), b.swapaxes(0, 1), b.movedim(0, 1)


@case
def squeeze_family(a, b):
    return a.unsqueeze(0), a[None].squeeze(0), b[:, None, :].squeeze(), a.unsqueeze(-1).expand(-1, -1, 3)


@case
def reductions(a, b):
    return (
        a.sum(),
        a.mean(0),
        a.max(),
        b.min(dim=1),
        b.std(),
        a.prod(1),
        a.norm(),
        b.amax(0),
        a.any(),
        b.all(),
    )


@case
def reductions_with_keywords(a, b):
    return a.sum(dim=1, keepdim=True), b.mean(dim=(0, 1)), a.argmax(dim=-1), a.logsumexp(1), b.cumsum(0)


@case
def named_results_of_reductions(a, b):
    best = a.max(dim=1)
    values, indices = b.sort(dim=0)
    return best.values, best.indices, values, indices, best


@case
def pointwise(a, b):
    return a.exp(), a.sigmoid(), a.relu(), a.tanh(), b.abs().sqrt(), b.clamp(-1, 1), b.clamp(min=0), a.neg()


@case
def casts(a, b):
    return (
        a.to(torch.float64),
        a.half(),
        a.int(),
        b.bool(),
        b.double(),
        b.type_as(a),
        a.to(b),
        a.long(),
        a.bfloat16(),
    )


@case
def to_with_many_spellings(a, b):
    return a.to("cpu"), a.to(device="cpu", dtype=torch.int32), a.to("cpu", torch.float16), a.to(a.device)


@case
def to_of_the_same_dtype_is_the_same_tensor(a, b):
    return a.to(torch.float32), b.float(), a.contiguous(), a.to(a.device)


@case
def splits_and_chunks(a, b):
    first, second = a.chunk(2, dim=1)
    parts = b.split(1, dim=0)
    return first - second, parts, a.split([1, 3], dim=1), b.unbind(1), a.tensor_split(2, 1)


@case
def gathers_and_scatters(a, b):
    index = a.argsort(dim=1)
    return (
        a.gather(1, index),
        b.scatter(1, index, 1.0),
        a.index_select(0, torch.tensor([0, 2])),
        b.take(index),
    )


@case
def masked_methods(a, b):
    mask = a > 0
    return a.masked_fill(mask, 0), b.where(mask, a), a.masked_fill(~mask, float("-inf"))


@case
def repeats_and_tiles(a, b):
    return a.repeat(2, 1), b.tile((1, 2)), a.expand(2, -1, -1), a.repeat_interleave(2, dim=0), a.expand_as(b)


@case
def new_tensors_like_this_one(a, b):
    return (
        a.new_zeros(2, 3),
        b.new_ones((2,)),
        a.new_full((2, 2), 7.0),
        b.new_tensor([1.0, 2.0]),
        a.new_empty(0),
    )


@case
def clones_and_detaches(a, b):
    c = a.clone()
    c[0] = 5
    return c, b.detach(), a.data.sum()


@case
def in_place_methods(a, b):
    c = a.clone()
    c.fill_(2).sub_(b).clamp_(min=-1).neg_().relu_()
    c.masked_fill_(b > 0, 3)
    c.copy_(c + 1)
    c.t_()
    return c


@case
def indexing_of_all_kinds(a, b):
    return a[0], a[-1], a[:, 1], a[1:3], a[..., 0], a[None], a[[0, 2]], a[:, [1, 3]], a[0, 1], a[::2], b[0][1]


@case
def indexing_with_tensors(a, b):
    rows = torch.tensor([0, 2])
    return a[rows], a[rows, rows], a[:, rows], b[rows][:, None]


@case
def iteration_over_a_tensor(a, b):
    total = torch.zeros(4)
    for row in a:
        total = total + row
    return total, [row.sum() for row in b]


@case
def unpacking_of_a_tensor(a, b):
    first, second, third = a[:3]
    return first * second - third, *b[:2]


@case
def membership_of_indices(a, b):
    return len(a), len(b.t()), a.shape[0] in (3, 5)


@case
def sorting_methods(a, b):
    values, index = a.topk(2, dim=1)
    return values, index, b.argsort(descending=True), a.kthvalue(2).values, b.median(), b.median(dim=0).values


@case
def triangles(a, b):
    return a.tril(), b.triu(1), a.diagonal(), b.diag(), torch.ones(3, 3).tril().bool()


@case
def rolls_and_flips(a, b):
    return a.roll(1, 0), b.flip(1), a.rot90(), b.fliplr()


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)))
def requires_grad_is_read(a, b):
    if a.requires_grad and not b.requires_grad:
        return a * b, a.is_leaf, b.is_leaf
    return a + b


@case
def method_by_getattr(a, b):
    return getattr(a, "sum")(dim=0), getattr(b, "no_such_method", None), getattr(torch, "add")(a, b)


@case
def unbound_methods_of_the_class(a, b):
    return torch.Tensor.add(a, b), torch.Tensor.sum(b, dim=0)


@case
def bound_method_kept_in_a_variable(a, b):
    add = a.add
    return add(b), add(1)


@case
def dunder_methods(a, b):
    return a.__add__(b), b.__getitem__(0), a.__rsub__(1), a.__len__(), a.__lt__(b)


@case
def unfold_and_windows(a, b):
    return a.unfold(1, 2, 1), b.as_strided((2, 2), (1, 2)), a.narrow(1, 1, 2), b.select(0, 1)


@case
def einsum_and_friends(a, b):
    return (
        torch.einsum("ij,kj->ik", a, b),
        a.matmul(b.t()),
        a.mm(b.t()),
        a[None].bmm(b.t()[None]),
        a[0].dot(b[0]),
    )


@case
def conversion_to_lists_of_sizes(a, b):
    return list(a.shape), tuple(b.size()), [*a.stride()]


@case
def addition_variants(a, b):
    return a.add(b, alpha=2), torch.addmm(a @ b.t(), a, b.t()), a.addcmul(a, b, value=0.5), a.lerp(b, 0.3)


@case
def mutation_through_several_views(a, b):
    flat = a.view(-1)
    first = a[0]
    flat[0] = 9.0
    first[1] = 8.0
    return a, flat, first


@case
def resize_by_pad_and_cat(a, b):
    c = torch.cat([a, b], dim=1)
    d = torch.stack((a, b), dim=-1)
    return c, d, torch.nn.functional.pad(c, (1, 1)), torch.vstack([a, b]), torch.hstack([a, b])


@case(make=lambda size: (torch.randn(size, 4).to(torch.bfloat16), torch.randn(size, 4).half()))
def half_precisions(a, b):
    return a + 1, b * 2, a + b, a.float() @ b.float().t()
