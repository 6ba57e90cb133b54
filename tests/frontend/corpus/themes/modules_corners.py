"""More modules: lazy structure, names made at run time, wrappers, sharing, switches in forward."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.corpus.registry import case


class ByName(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.depth = depth
        for i in range(depth):
            setattr(self, f"layer{i}", nn.Linear(4, 4))
            self.register_buffer(f"scale{i}", torch.tensor(float(i + 1)))
            self.add_module(f"norm{i}", nn.LayerNorm(4))

    def forward(self, x):
        for i in range(self.depth):
            x = getattr(self, f"norm{i}")(getattr(self, f"layer{i}")(x)) * getattr(self, f"scale{i}")
        return x


class Kwargs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, hidden, mask=None, *args, flags: dict | None = None, **kwargs):
        hidden = self.inner(hidden)
        if mask is not None:
            hidden = hidden.masked_fill(mask, 0.0)
        for name, value in (flags or {}).items():
            if name == "scale":
                hidden = hidden * value
        return (hidden, *args) if kwargs.get("as_tuple", True) else {"hidden": hidden}


class Wrapped(nn.Module):
    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.modules_ = modules
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def forward(self, x):
        return self.function(x, *(module(x) for module in self.modules_))


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Iterated(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def __iter__(self):
        return iter(self.cells)

    def __len__(self):
        return len(self.cells)

    def __getitem__(self, index):
        return self.cells[index]

    def forward(self, x):
        for cell in self:
            x = cell(x)
        return x + len(self) + self[0](x)


class Configured(nn.Module):
    class Config:
        width = 4
        act = "gelu"
        dropout = 0.0

    def __init__(self):
        super().__init__()
        self.config = self.Config()
        self.project = nn.Linear(self.config.width, self.config.width)
        self.act = {"gelu": nn.GELU(), "relu": nn.ReLU()}[self.config.act]

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    @property
    def device(self):
        return next(iter(self.parameters())).device

    def forward(self, x):
        x = x.to(device=self.device, dtype=self.dtype)
        if self.config.dropout > 0:
            x = F.dropout(x, self.config.dropout, self.training)
        return self.act(self.project(x))


class Output(OrderedDict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, output_hidden_states=False, return_dict=True):
        all_states = () if output_hidden_states else None
        for layer in self.layers:
            if output_hidden_states:
                all_states = all_states + (x,)
            x = layer(x)
        if not return_dict:
            return tuple(v for v in (x, all_states) if v is not None)
        return Output(last=x, states=all_states)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.history = {}

    def forward(self, x):
        self.steps += 1
        self.history["last"] = x.detach()
        return x * self.steps


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
        return x + self.table[: x.shape[0]]


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.mode = "train"

    def forward(self, x):
        getattr(self, f"_{self.mode}")()
        return x * self.weight if self.training else x

    def _train(self):
        self.calls = getattr(self, "calls", 0)


class Quantised(nn.Linear):
    def forward(self, x):
        scale = self.weight.abs().max() / 127
        weight = (self.weight / scale).round() * scale
        return F.linear(x, weight, self.bias)


class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * (self.out_features / self.in_features)


@case(keep=lambda: (ByName(),))
def layers_by_name(module, a):
    return module(a)


@case(keep=lambda: (Kwargs(),))
def forward_with_all_kinds_of_arguments(module, a):
    return module(a), module(a, a > 0, 3), module(hidden=a, flags={"scale": 2.0}, as_tuple=False)


@case(keep=lambda: (Wrapped(lambda x, *ys: x + sum(ys), nn.Linear(4, 4), nn.Tanh()),))
def module_with_a_function(module, a):
    return module(a)


@case(keep=lambda: (Residual(nn.Linear(4, 4), nn.ReLU()),))
def subclass_of_sequential(module, a):
    return module(a), module[0](a), len(module)


@case(keep=lambda: (Iterated(),))
def module_with_container_methods(module, a):
    return module(a), [type(cell).__name__ for cell in module]


@case(keep=lambda: (Configured(),))
def configured_module(module, a):
    return module(a.double()), module.dtype


@case(keep=lambda: (Returning(),))
def outputs_of_many_shapes(module, a):
    output = module(a, output_hidden_states=True)
    return output, output.last, module(a, return_dict=False), len(output.states)


@case(keep=lambda: (Counting(),))
def counter_in_a_buffer(module, a):
    return module(a), module.history["last"] * 2


@case(keep=lambda: (Lazy(),), hits=False)
def table_made_when_needed(module, a):
    return module(a)


@case(keep=lambda: (Switch(),), hits=False)
def method_by_name(module, a):
    return module(a), module.calls


@case(keep=lambda: (Quantised(4, 4),))
def subclass_of_linear(module, a):
    return module(a)


@case(keep=lambda: (Lora(nn.Linear(4, 4)),))
def adapter(module, a):
    return module(a), module.in_features


@case(
    keep=lambda: (
        nn.ModuleDict({"x": nn.ModuleList([nn.Linear(4, 4)]), "y": nn.ModuleDict({"z": nn.ReLU()})}),
    )
)
def nested_containers(module, a):
    return module["y"]["z"](module["x"][0](a)), [name for name, _ in module.named_modules()]


@case(keep=lambda: ([nn.Linear(4, 4), nn.ReLU()], {"head": nn.Linear(4, 2)}, (nn.Tanh(),)))
def modules_in_plain_containers(layers, table, rest, a):
    for layer in layers:
        a = layer(a)
    return table["head"](a), rest[0](a)


@case(keep=lambda: (partial(F.leaky_relu, negative_slope=0.3), nn.Linear(4, 4)))
def partial_as_activation(act, layer, a):
    return act(layer(a))


@case(keep=lambda: (nn.Linear(4, 4).double(),))
def module_in_double(module, a):
    return module(a.to(module.weight.dtype)), next(module.parameters()).dtype


@case(keep=lambda: (nn.Sequential(OrderedDict(first=nn.Linear(4, 4), act=nn.SiLU())),))
def named_sequential(module, a):
    return module.first(a), module(a), list(dict(module.named_children())), module.act(a)


@case(keep=lambda: (nn.Linear(4, 4), nn.Linear(4, 4)))
def the_same_module_twice(first, second, a):
    for module in (first, second, first):
        a = module(a)
    return a, first is not second


@case(keep=lambda: (nn.EmbeddingBag(6, 4, mode="sum"), nn.Bilinear(4, 4, 2)))
def rare_layers(bag, bilinear, a):
    return bag(torch.tensor([[0, 2], [1, 1]])), bilinear(a, a)


@case(
    keep=lambda: (
        nn.Conv1d(4, 4, 3, padding=1, groups=2),
        nn.ConvTranspose1d(4, 2, 2),
        nn.Upsample(scale_factor=2),
    )
)
def convolutions_in_time(conv, transposed, upsample, a):
    x = a.t()[None]
    return conv(x), transposed(x), upsample(x)


@case(keep=lambda: (nn.PReLU(), nn.Softmax(dim=-1), nn.Hardswish(), nn.GLU(), nn.Softplus()))
def activation_modules(prelu, softmax, hardswish, glu, softplus, a):
    return prelu(a), softmax(a), hardswish(a), glu(a), softplus(a)


@case(keep=lambda: (nn.RNN(4, 3, batch_first=True), nn.GRU(4, 3)), breaks=None)
def recurrent_layers(rnn, gru, a):
    return rnn(a[None])[0], gru(a[:, None])[1]


@case(keep=lambda: (nn.LSTMCell(4, 4),))
def lstm_cell(cell, a):
    h = c = torch.zeros(1, 4)
    for x in a.unbind(0):
        h, c = cell(x[None], (h, c))
    return h, c


@case(keep=lambda: (nn.BatchNorm2d(1, affine=False, track_running_stats=False), nn.InstanceNorm1d(4)))
def norms_without_state(batch, instance, a):
    return batch(a[None, None]), instance(a.t()[None])


@case(keep=lambda: (nn.Linear(4, 4),))
def frozen_inside(module, a):
    with torch.no_grad():
        features = module(a)
    return features.detach() + module(a)


@case(
    keep=lambda: (
        nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)]),
        nn.ParameterDict({"w": torch.ones(4)}),
    )
)
def containers_of_parameters(items, table, a):
    for p in items:
        a = a * p
    return a + table["w"], len(items), list(table.keys()), "w" in table, items[1].shape


@case(keep=lambda: (Lora(Quantised(4, 4)),))
def all_names_of_a_tree(module, a):
    return (
        [n for n, _ in module.named_parameters()],
        [n for n, _ in module.named_modules()],
        {n: tuple(p.shape) for n, p in module.named_parameters()},
        len(list(module.buffers())),
        a,
    )


@case(keep=lambda: (nn.Linear(4, 4),))
def module_attributes_are_asked(module, a):
    return (
        isinstance(module, nn.Module),
        module.training,
        "weight" in module._parameters,
        module.extra_repr(),
        module._get_name(),
        hasattr(module, "forward"),
        a,
    )


@case(keep=lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)),))
def evaluated_inside(module, a):
    module.eval()
    result = module(a)
    module.train()
    return result, module.training, module[1].training
