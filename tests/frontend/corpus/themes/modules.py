"""`torch.nn` modules: layers, containers, user modules, state, hooks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.corpus.registry import case


class Block(nn.Module):
    def __init__(self, width=4, residual=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.residual = residual

    def forward(self, x, scale=1.0):
        h = self.down(F.gelu(self.up(self.norm(x)))) * scale
        return x + h if self.residual else h


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(residual=False)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 2.0))])
        self.offsets = nn.ParameterDict({"x": nn.Parameter(torch.zeros(4))})

    def forward(self, x, head="a"):
        for index, (block, scale) in enumerate(zip(self.blocks, self.scales)):
            x = block(x * scale, scale=index + 1) + self.offsets["x"]
        return self.heads[head](x), {name: layer(x).sum() for name, layer in self.heads.items()}


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.steps = 0

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.hidden.add_(1)
        return (x - self.mean) / self.hidden


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.cache = []
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.last = x * self.weight
        self.cache.append(self.calls)
        return self.last + len(self.cache)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens))


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = F.relu
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.table = {"scale": 2.0}

    def forward(self, x, **options):
        for layer in self.layers:
            x = self.act(layer(x))
        return x * self.table["scale"] + options.get("bias", 0)


class Base(nn.Module):
    def forward(self, x):
        return self.inner(x) + 1

    def inner(self, x):
        raise NotImplementedError


class Child(Base):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def inner(self, x):
        return x * self.weight

    def forward(self, x):
        return super().forward(x) * 2


class Modes(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        if self.training:
            x = x * 2
        return self.drop(x), self.training


def evaluated(module):
    return (module.eval(),)


@case(keep=lambda: (nn.Linear(4, 3),))
def linear(module, a):
    return module(a), module.in_features, module.weight.shape, module.bias is not None


@case(keep=lambda: (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),))
def sequential(module, a):
    return module(a), len(module), module[0](a), module[-1].out_features, [type(m).__name__ for m in module]


@case(keep=lambda: (Block(),))
def user_module(module, a):
    return module(a), module(a, scale=2.0), module.residual


@case(keep=lambda: (Stack(),))
def containers_of_modules(module, a):
    return module(a), module(a, head="b")[0]


@case(keep=lambda: (WithBuffers(),))
def buffers_are_updated(module, a):
    return module(a)


@case(keep=lambda: (WithCache(),), hits=False)
def attributes_are_changed_in_forward(module, a):
    return module(a), module.calls


@case(keep=lambda: (Tied(),), make=lambda size: (torch.randint(0, 6, (size, 2)),))
def weight_tying(module, tokens):
    return module(tokens), module.out.weight is module.embed.weight


@case(keep=lambda: (Functional(),))
def functions_and_lists_as_attributes(module, a):
    return module(a), module(a, bias=1.0)


@case(keep=lambda: (Child(),))
def inherited_forward(module, a):
    return module(a), module.forward(a), module.inner(a)


@case(keep=lambda: (Modes(),))
def training_flag(module, a):
    return module(a)


@case(keep=lambda: evaluated(Modes()))
def evaluation_flag(module, a):
    return module(a)


@case(keep=lambda: (nn.Dropout(0.3),))
def dropout_in_training(module, a):
    return module(a)


@case(keep=lambda: (nn.BatchNorm1d(4),))
def batch_norm_in_training(module, a):
    return module(a), module.num_batches_tracked


@case(keep=lambda: evaluated(nn.BatchNorm1d(4)))
def batch_norm_in_evaluation(module, a):
    return module(a), module.running_mean


@case(keep=lambda: (nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Flatten()))
def convolution(conv, pool, flatten, a):
    return flatten(pool(conv(a[None, None])))


@case(keep=lambda: evaluated(nn.MultiheadAttention(4, 2, batch_first=True)), breaks=None)
def multi_head_attention(module, a):
    return module(a[None], a[None], a[None])


@case(keep=lambda: (nn.MultiheadAttention(4, 2),))
def multi_head_attention_in_training(module, a):
    return module(a[:, None], a[:, None], a[:, None], need_weights=False)[0]


@case(keep=lambda: (nn.LSTM(4, 3, batch_first=True),), breaks=None)
def lstm(module, a):
    output, (h, c) = module(a[None])
    return output, h, c


@case(keep=lambda: (nn.GRUCell(4, 4),))
def gru_cell_in_a_loop(module, a):
    h = torch.zeros(1, 4)
    for x in a:
        h = module(x[None], h)
    return h


@case(
    keep=lambda: (nn.Embedding(10, 4, padding_idx=0),), make=lambda size: (torch.randint(0, 10, (size, 2)),)
)
def embedding(module, tokens):
    return module(tokens).sum(1), module.num_embeddings


@case(keep=lambda: (nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4)))
def norms(layer, group, rms, a):
    return layer(a), group(a), rms(a)


@case(keep=lambda: evaluated(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)), breaks=None)
def transformer_layer(module, a):
    return module(a[None])


@case(keep=lambda: (Stack(),))
def iteration_over_the_tree(module, a):
    return (
        [name for name, _ in module.named_parameters()][:3],
        [type(m).__name__ for m in module.children()],
        len(list(module.modules())),
        sum(p.numel() for p in module.parameters()),
        [name for name, _ in module.named_children()],
        a + 1,
    )


@case(keep=lambda: (Block(),))
def norm_of_all_parameters(module, a):
    return (
        sum((p * p).sum() for p in module.parameters()),
        {n: p.shape for n, p in module.named_parameters()},
        a,
    )


@case(keep=lambda: (Block(),))
def sub_modules_by_name(module, a):
    return (
        getattr(module, "up")(a),
        module.get_submodule("norm")(a),
        hasattr(module, "gate"),
        module.get_parameter("up.bias"),
    )


@case(keep=lambda: (Block(),))
def state_dict_is_read(module, a):
    return a * module.state_dict()["norm.weight"], list(module.state_dict())


def hooked():
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda m, args, output: output * 2)
    module.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    return (module,)


@case(keep=hooked)
def forward_hooks(module, a):
    return module(a)


@case(keep=lambda: (nn.Linear(4, 4),))
def gradient_through_a_module(module, a):
    loss = module(a).sum()
    return loss, loss.requires_grad, module.weight.requires_grad


@case(keep=lambda: (nn.Sequential(nn.Linear(4, 4), nn.Tanh()),))
def module_in_no_grad(module, a):
    with torch.no_grad():
        return module(a)


@case(keep=lambda: (nn.Identity(), nn.ReLU(inplace=True)))
def identity_and_in_place_relu(identity, relu, a):
    return identity(a), relu(a + 0)


@case(
    keep=lambda: (nn.CrossEntropyLoss(), nn.Linear(4, 3)),
    make=lambda size: (torch.randn(size, 4), torch.randint(0, 3, (size,))),
)
def loss_module(loss, module, a, target):
    return loss(module(a), target)


@case(breaks=None)
def module_made_inside(a, b):
    layer = nn.Linear(4, 2)
    return layer(a).shape, b


@case(keep=lambda: (nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]),))
def module_list_methods(layers, a):
    for i, layer in enumerate(layers[:2]):
        a = layer(a)
    for layer in reversed(layers):
        a = layer(a)
    return a, len(layers), layers[-1](a), isinstance(layers[0], nn.Linear)


@case(keep=lambda: (nn.ModuleDict({"x": nn.Linear(4, 4), "y": nn.ReLU()}),))
def module_dict_methods(table, a):
    for name in table:
        a = table[name](a)
    return a, list(table.keys()), "x" in table, len(table), [type(m).__name__ for m in table.values()]


@case(keep=lambda: (nn.Linear(4, 4),))
def module_called_by_forward_and_unbound(module, a):
    return module.forward(a), nn.Linear.forward(module, a), nn.Module.__call__(module, a)


@case(keep=lambda: (nn.Linear(4, 4), nn.Linear(4, 4)))
def parameter_arithmetic(first, second, a):
    merged = first.weight * 0.5 + second.weight * 0.5
    return F.linear(a, merged, first.bias), first.weight.data.sum(), first.weight


GLOBAL_LAYER = nn.Linear(4, 4)
with torch.no_grad():
    GLOBAL_LAYER.weight.fill_(0.25)
    GLOBAL_LAYER.bias.zero_()


@case
def module_in_a_global(a, b):
    return GLOBAL_LAYER(a) + GLOBAL_LAYER(b)


def module_in_a_closure():
    torch.manual_seed(3)
    layer = Block()

    @case
    def module_of_an_outer_function(a, b):
        return layer(a) + b

    return module_of_an_outer_function


module_in_a_closure()


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    @property
    def width(self):
        return self.inner.in_features

    def forward(self, x):
        return self.inner(x) * self.out_features + self.width


@case(keep=lambda: (Wrapper(),))
def module_with_getattr(module, a):
    return module(a), module.out_features


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1, keepdim=True)
            result = result + share * expert(x)
        return result


@case(keep=lambda: (Experts(),))
def mixture_of_experts(module, a):
    return module(a)


@case(keep=lambda: (nn.Linear(4, 4),))
def training_flag_is_switched(module, a):
    module.eval()
    before = module.training
    module.train()
    return module(a), before, module.training


@case(keep=lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),), breaks=None)
def parametrised_module(module, a):
    return module(a)


@case(keep=lambda: (nn.Linear(4, 4),), breaks=None)
def checkpointed(module, a):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(module, a, use_reentrant=False)
