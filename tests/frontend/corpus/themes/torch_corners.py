"""Corners of torch: old constructors, autograd functions, scripts, caches, packing, transforms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tests.frontend.corpus.registry import case


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2 * ctx.scale, None


@torch.jit.script
def scripted(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + 1


@torch.jit.ignore
def ignored(x):
    return x + 1


@torch.jit.unused
def unused(x):
    return x + 2


@torch.compile(backend="eager")
def compiled(x):
    return x * 3


@torch.no_grad()
def without_gradient(x):
    return x * 2


@torch.inference_mode()
def in_inference(x):
    return x * 2


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, 4))
        self.register_buffer("nothing", None)
        self.position = 0

    def forward(self, x):
        n = x.shape[0]
        self.keys[self.position : self.position + n] = x
        self.position = (self.position + n) % 3
        return self.keys[:4].sum(), self.nothing is None


class Dynamic:
    """As the caches of `transformers`: a list of tensors that grow."""

    def __init__(self):
        self.keys = []

    def update(self, key, layer):
        if len(self.keys) <= layer:
            self.keys.append(key)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], dim=0)
        return self.keys[layer]

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, layer):
        return self.keys[layer]


@case(breaks=4)
def old_constructors(a, b):
    return (
        torch.FloatTensor([1.0, 2.0]) + 1,
        torch.LongTensor([1, 2]),
        torch.Tensor([3.0]),
        torch.BoolTensor([True]),
    )


@case
def types_by_name(a, b):
    return a.type(torch.float64), a.type("torch.IntTensor"), a.type_as(b.double()), a.cpu(), a.to(b.double())


@case
def constructors_with_sizes_of_all_kinds(a, b):
    n = a.shape[0]
    return (
        torch.zeros((n, 2)),
        torch.zeros(n, 2),
        torch.zeros([n, 2]),
        torch.zeros(size=(n,)),
        torch.zeros(torch.Size([n])),
        torch.empty(n, 0).shape,
        torch.ones(()),
    )


@case
def tensors_from_nested_lists(a, b):
    return (
        torch.tensor([[1, 2], [3, 4]], dtype=torch.float64),
        torch.tensor([True, False]),
        torch.tensor(1 + 2j),
        torch.tensor([]),
        torch.tensor([1.5, 2]),
        torch.tensor(a.shape),
    )


@case(breaks=1)
def tensor_of_tensors(a, b):
    return torch.tensor([a[0, 0], b[0, 0]]), torch.as_tensor(a), torch.asarray([1, 2])


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)), breaks=None)
def autograd_function(a, b):
    return Cube.apply(a, 2.0) + b


@case(breaks=1)
def autograd_function_without_gradient(a, b):
    return Cube.apply(a, 0.5)


@case(breaks=None)
def scripted_function(a, b):
    return scripted(a, 2) + b


@case
def functions_for_the_scripter(a, b):
    return ignored(a) + unused(b)


@case
def compiled_function_inside(a, b):
    return compiled(a) + b


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)))
def decorated_without_gradient(a, b):
    c = without_gradient(a)
    return c, c.requires_grad, (a * b).requires_grad


@case(breaks=None)
def decorated_in_inference(a, b):
    return in_inference(b).is_inference(), a + 1


@case(keep=lambda: (Cache(),), hits=False)
def buffer_as_a_cache(module, a):
    return module(a)


@case(keep=lambda: (Dynamic(),), hits=False)
def growing_cache(cache, a):
    key = cache.update(a * 2, 0)
    cache.update(key + 1, 1)
    return key.sum(), len(cache), cache[0].shape[0]


@case
def growing_cache_made_inside(a, b):
    cache = Dynamic()
    for _ in range(2):
        for layer in range(2):
            cache.update(a * layer + b, layer)
    return cache[1], len(cache), cache.keys


@case
def index_writes(a, b):
    index = torch.tensor([0, 2])
    a.index_copy_(0, index, b[:2])
    a.index_fill_(1, torch.tensor([1]), 3.0)
    a.index_add_(0, index, b[:2])
    a.scatter_(1, torch.zeros(1, 1, dtype=torch.long), 9.0)
    a.index_put_((index, index), torch.tensor(5.0))
    return a


@case
def padded_sequences(a, b):
    return pad_sequence([a[:2], b], batch_first=True, padding_value=-1.0)


@case
def softmax_in_another_dtype(a, b):
    return F.softmax(a.half(), dim=-1, dtype=torch.float32).to(a.dtype), torch.softmax(b, -1, torch.float64)


@case
def masked_attention(a, b):
    mask = torch.ones(a.shape[0], b.shape[0], dtype=torch.bool).tril()
    bias = torch.zeros_like(mask, dtype=a.dtype).masked_fill_(~mask, torch.finfo(a.dtype).min)
    q, k = (x.view(1, -1, 2, 2).transpose(1, 2) for x in (a, b))
    return F.scaled_dot_product_attention(q, k, k, attn_mask=bias).transpose(1, 2).reshape(a.shape)


@case
def grouped_heads(a, b):
    def repeated(x, n):
        batch, heads, length, width = x.shape
        if n == 1:
            return x
        return x[:, :, None].expand(batch, heads, n, length, width).reshape(batch, heads * n, length, width)

    return repeated(a.view(1, 2, -1, 2), 2), repeated(b.view(1, 1, -1, 4), 1)


@case
def alibi_slopes(a, b):
    heads = 4
    slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
    positions = torch.arange(a.shape[0])
    return slopes[:, None, None] * (positions[None, :] - positions[:, None]).abs()


@case
def patches(a, b):
    image = a[:2, :].reshape(1, 1, 2, 4)
    return (
        image.unfold(2, 2, 2).unfold(3, 2, 2).contiguous().view(1, -1, 4),
        F.unfold(image, 2),
        F.pixel_unshuffle(image, 2),
    )


@case
def relative_positions(a, b):
    n = a.shape[0]
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    buckets = torch.where(distance < 2, distance, torch.full_like(distance, 2)).clamp(min=0)
    return F.embedding(buckets, b)


@case
def sinusoids(a, b):
    n, width = a.shape
    position = torch.arange(n, dtype=torch.float).unsqueeze(1)
    divide = torch.exp(torch.arange(0, width, 2).float() * (-4.0 / width))
    table = torch.zeros(n, width)
    table[:, 0::2] = torch.sin(position * divide)
    table[:, 1::2] = torch.cos(position * divide)
    return a + table


@case
def top_k_routing(a, b):
    weights, chosen = torch.topk(F.softmax(a, -1), 2, dim=-1)
    mask = F.one_hot(chosen, num_classes=4).permute(2, 1, 0)
    weights /= weights.sum(-1, keepdim=True)
    return weights, mask, sum(mask[e].sum() * e for e in range(4))


@case
def scan_of_a_state(a, b):
    state, outputs = torch.zeros(4), []
    for decay, x in zip(torch.sigmoid(a), b):
        state = decay * state + x
        outputs.append(state)
    return torch.stack(outputs), outputs[-1] is state


@case
def norm_by_hand(a, b):
    dtype = a.dtype
    x = a.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (torch.ones(4) * x).to(dtype), (b - b.mean(-1, keepdim=True)) / (
        b.var(-1, keepdim=True, unbiased=False) + 1e-5
    ).sqrt()


@case(breaks=None)
def parameter_made_inside(a, b):
    p = nn.Parameter(torch.ones(4), requires_grad=False)
    return a * p, isinstance(p, nn.Parameter)


@case
def outputs_that_share_memory(a, b):
    c = a + b
    return c, c.view(-1), c[0], c.t()


@case
def an_input_returned_in_a_view_and_changed(a, b):
    view = a.view(-1)
    a.mul_(2)
    view[0] = 1
    return view, a[0]


@case
def set_data_under_no_grad(a, b):
    with torch.no_grad():
        a.copy_(b)
        b.zero_()
    return a + 1


@case(
    make=lambda size: (
        torch.randn(size, 4),
        torch.randn(size, 4),
        {"scale": torch.tensor(2.0), "deep": [torch.ones(4)]},
    )
)
def tensors_deep_in_an_argument(a, b, table):
    table["deep"][0].add_(a.sum(0))
    table["scale"] = table["scale"] + 1
    return a * table["scale"] + table["deep"][0]


@case(breaks=None)
def sparse_and_nested_questions(a, b):
    return (
        a.is_sparse,
        a.is_nested,
        a.layout is torch.strided,
        b.is_conj(),
        b.is_neg(),
        a.is_pinned() if torch.cuda.is_available() else False,
    )


@case
def random_of_all_kinds(a, b):
    return (
        torch.rand(2),
        torch.randn_like(a),
        torch.randperm(4),
        torch.normal(0.0, 1.0, (2,)),
        a.clone().normal_(),
        b.clone().uniform_(0, 1),
        torch.empty(3).exponential_(),
        torch.multinomial(torch.ones(4), 2),
    )


@case(breaks=None)
def random_with_a_generator(a, b):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(2, generator=generator), a


@case
def map_and_reduce_over_rows(a, b):
    return torch.stack(list(map(torch.sum, a))), torch.cat([row.unsqueeze(0) * i for i, row in enumerate(b)])


@case(breaks=None)
def vectorised_map(a, b):
    return torch.vmap(torch.dot)(a, b)


@case(breaks=None)
def functional_gradient(a, b):
    return torch.func.grad(lambda x: (x * b).sum())(a)


@case
def pytrees(a, b):
    from torch.utils import _pytree as pytree

    tree = {"x": [a, 1], "y": (b, None)}
    leaves, spec = pytree.tree_flatten(tree)
    return (
        pytree.tree_map(lambda x: x * 2 if isinstance(x, torch.Tensor) else x, tree),
        len(leaves),
        pytree.tree_unflatten(leaves, spec),
    )


@case
def checks_of_torch(a, b):
    torch._check(a.shape[0] > 0, lambda: "empty")
    torch._assert(a.dim() == 2, "two")
    return a + b


@case
def view_with_another_dtype(a, b):
    return a.view(torch.int32).sum(), b.view(torch.uint8).shape


@case
def chained_views_and_writes(a, b):
    a.view(2, -1).t()[0].fill_(7.0)
    a.unsqueeze(0).squeeze().transpose(0, 1)[1] += 1
    return a


@case
def data_of_a_module_is_used(a, b):
    layer = F.linear
    weight, bias = torch.eye(4), None
    return layer(a, weight, bias), layer(b, weight=weight, bias=torch.ones(4))


@case
def tensors_made_of_tensors(x):
    return torch.tensor(x), torch.tensor(x.T, dtype=torch.float64).add_(1), torch.tensor(data=x.sum())
