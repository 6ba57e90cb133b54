"""Modules as people use them: replaced forwards, parametrized weights, averages of weights, odd calls."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from tests.frontend.harness import Capture, outcome, scene, tensor


@scene
def forward_replaced_on_the_instance(capture: Capture) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    call = capture(model)
    yield call(tensor())
    model[1].forward = lambda x: x * 10  # type: ignore[method-assign]
    yield call(tensor())
    model[0].forward = types.MethodType(lambda self, x: x + self.bias, model[0])  # type: ignore[method-assign]
    yield call(tensor())
    del model[1].forward
    yield call(tensor())
    model.forward = lambda x: x - 1  # type: ignore[method-assign]
    yield call(tensor())


@scene
def parametrized_weights(capture: Capture) -> Iterator[Any]:
    class Symmetric(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w.triu() + w.triu(1).t()

    torch.manual_seed(2)
    model = nn.Linear(4, 4)
    call = capture(model)
    yield call(tensor())
    parametrize.register_parametrization(model, "weight", Symmetric())
    yield call(tensor()), list(model.state_dict())
    parametrize.remove_parametrizations(model, "weight")
    yield call(tensor())
    parametrizations.weight_norm(model)
    yield call(tensor())


@scene
def spectral_norm_updates_buffers(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(2)
    model = parametrizations.spectral_norm(nn.Linear(4, 4))
    call = capture(model)
    for training in (True, True, False, True):
        model.train(training)
        yield call(tensor()), dict(model.named_buffers())


@scene
def an_average_of_weights(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(2)
    model = nn.Linear(4, 4)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def update(decay: float) -> Any:
        for ours, theirs in zip(average.parameters(), model.parameters()):
            ours.mul_(decay).add_(theirs, alpha=1 - decay)
        return sum(p.sum() for p in average.parameters())

    call = capture(update)
    for decay in (0.9, 0.5, 0.9):
        with torch.no_grad():
            model.weight.add_(1)
        yield call(decay), average.weight, average.weight.requires_grad


@scene
def gradients_clipped_and_zeroed(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(2)
    model = nn.Linear(4, 2)

    def function(x: torch.Tensor) -> Any:
        model.zero_grad()
        model(x).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        return norm, [p.grad.norm() for p in model.parameters()]

    call = capture(function)
    for step in range(3):
        yield call(tensor(seed=step)), model.weight.grad


@scene
def recurrent_and_attention_layers(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(2)
    lstm, gru = nn.LSTM(4, 3, batch_first=True), nn.GRU(4, 3)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def function(x: torch.Tensor) -> Any:
        a, (h, c) = lstm(x)
        b, _ = gru(x.transpose(0, 1))
        d, weights = attention(x, x, x)
        return a, h, c, b, d, weights, layer(x)

    call = capture(function)
    for training in (True, False, True):
        for module in (lstm, gru, attention, layer):
            module.train(training)
        with torch.set_grad_enabled(training):
            yield call(tensor(2, 3, 4))


@scene
def many_kinds_of_layers(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(2)
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3, padding=1),
            "norm": nn.BatchNorm2d(4),
            "pool": nn.MaxPool2d(2, return_indices=True),
            "unpool": nn.MaxUnpool2d(2),
            "group": nn.GroupNorm(2, 4),
            "instance": nn.InstanceNorm2d(4, track_running_stats=True),
            "drop": nn.Dropout2d(0.3),
            "up": nn.Upsample(scale_factor=2),
        }
    )

    def function(x: torch.Tensor) -> Any:
        y = model["drop"](F.gelu(model["norm"](model["conv"](x))))
        pooled, indices = model["pool"](y)
        return (
            model["group"](model["unpool"](pooled, indices)),
            model["instance"](y),
            model["up"](pooled).shape,
        )

    call = capture(function)
    torch.manual_seed(9)
    for training in (True, True, False):
        model.train(training)
        yield call(tensor(2, 3, 4, 4)), {name: b.clone() for name, b in model.named_buffers()}


@scene
def masks_and_indexed_writes(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, mask: torch.Tensor, index: torch.Tensor) -> Any:
        x[mask] = 0
        x[index, 0] = 7
        x[:, 1:3] += torch.ones(2)
        x[..., None, -1] = x[..., None, 0]
        x.scatter_(0, index[None].expand(1, 2), -1.0)
        x.index_add_(0, index, torch.ones(2, 4))
        x.masked_fill_(x > 6, 0.5)
        y = torch.zeros(3, 4).index_put_((index,), torch.ones(()))
        return x.sum(), y, x[mask.any(1)].shape[1]

    call = capture(function)
    for seed in (0, 1, 0):
        x = tensor(seed=seed)
        yield outcome(call, x, tensor(seed=seed + 5) > 0, torch.tensor([0, 2])), x


@scene
def views_or_copies_by_stride(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        x.flatten().add_(1)
        x.reshape(-1)[0] = 5
        x.contiguous().mul_(2)
        x.T.sub_(0.5)
        x.to(torch.float32).add_(1)
        return x.clone()

    call = capture(function)
    for make in (
        lambda: tensor(),
        lambda: tensor(4, 3).t(),
        lambda: tensor(6, 4)[::2],
        lambda: tensor().double(),
    ):
        x = make()
        yield call(x), x


@scene
def swaps_through_views(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x[0], x[1]
        x[0], x[1] = b.clone(), a.clone()
        y[:], z = x[0], y.clone()
        x, y = y, x
        return x, y, z, a, b

    call = capture(function)
    for _ in range(2):
        x, y = tensor(2, 4), tensor(4, seed=1)
        yield call(x, y), x, y


@scene
def an_output_used_twice_and_changed_outside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return {"a": y, "b": [y, y.view(-1)], "c": (y, x)}

    call = capture(function)
    for _ in range(2):
        x = tensor()
        out = call(x)
        out["b"][1][0] = 99
        yield out, out["a"] is out["b"][0], out["c"][1] is x


@scene
def a_model_with_a_cache_of_keys(capture: Capture) -> Iterator[Any]:
    class Cache:
        def __init__(self) -> None:
            self.keys: list[torch.Tensor] = []
            self.seen = 0

        def update(self, layer: int, key: torch.Tensor) -> torch.Tensor:
            if layer == 0:
                self.seen += key.shape[0]
            if len(self.keys) <= layer:
                self.keys.append(key)
            else:
                self.keys[layer] = torch.cat([self.keys[layer], key])
            return self.keys[layer]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
            cache = Cache() if cache is None else cache
            for number, layer in enumerate(self.layers):
                x = layer(x) + cache.update(number, x).mean(0)
            return x, cache

    torch.manual_seed(2)
    model = Model()
    call = capture(model)
    cache: Any = None
    for step in range(4):
        out, cache = call(tensor(1, 4, seed=step), cache)
        yield out, cache.seen, list(cache.keys)


@scene
def a_static_cache_written_at_a_position(capture: Capture) -> Iterator[Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3), persistent=False)
            self.position = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.cache[self.position] = x
            self.position = (self.position + 1) % 4
            return self.cache[: self.position].sum(0)

    model = Model()
    call = capture(model)
    for step in range(6):
        yield call(tensor(3, seed=step)), model.cache, model.position


@scene
def lazy_modules_and_state(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    call = capture(model)
    for _ in range(2):
        yield call(tensor()), type(model[0]).__name__


@scene
def decorated_by_modes(capture: Capture) -> Iterator[Any]:
    @torch.no_grad()
    def quiet(x: torch.Tensor) -> Any:
        return x * 2

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def narrow(x: torch.Tensor) -> Any:
        return x @ x.t()

    @torch.inference_mode()
    def inference(x: torch.Tensor) -> Any:
        return x + 1

    def function(x: torch.Tensor) -> Any:
        return quiet(x), narrow(x), inference(x), x * 3

    for target in (function, quiet, narrow, inference):
        call = capture(target)
        for _ in range(2):
            yield outcome(call, tensor().requires_grad_())


@scene
def losses_and_labels(capture: Capture) -> Iterator[Any]:
    def function(logits: torch.Tensor, labels: torch.Tensor, weights: Any) -> Any:
        loss = F.cross_entropy(logits, labels, weight=weights, ignore_index=-100, label_smoothing=0.1)
        correct = (logits.argmax(-1) == labels).float().mean()
        return loss, correct.item(), F.nll_loss(logits.log_softmax(-1), labels.clamp(min=0))

    call = capture(function)
    for labels in ([0, 1, 3], [0, -100, 2], [1, 1, 1]):
        for weights in (None, torch.ones(4)):
            yield call(tensor(), torch.tensor(labels), weights)


@scene
def distributions_and_sampling(capture: Capture) -> Iterator[Any]:
    def function(mean: torch.Tensor) -> Any:
        normal = torch.distributions.Normal(mean, 1.0)
        sample = normal.rsample()
        kinds = torch.distributions.Categorical(logits=mean)
        return sample, normal.log_prob(sample), kinds.sample(), torch.bernoulli(torch.sigmoid(mean))

    call = capture(function)
    torch.manual_seed(4)
    for seed in (0, 1):
        yield call(tensor(seed=seed)), torch.rand(1)


@scene
def sizes_that_change_every_time(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        n, m = x.shape
        return x.view(m, n), torch.arange(n), x.new_zeros(n + m), x.numel() // m, list(x.size()), x.shape[-1:]

    call = capture(function)
    for n in range(1, 13):
        yield call(tensor(n, 2))


@scene
def numpy_and_back(capture: Capture) -> Iterator[Any]:
    import numpy as np

    def function(x: torch.Tensor, array: Any) -> Any:
        y = (x * 8).round()  # torch adds in another order
        found = np.cumsum(y.numpy(), axis=0)
        array[0] += 1
        return torch.from_numpy(found) + 1, float(array.sum()), torch.tensor(array) * x[0, 0]

    call = capture(function)
    array = np.zeros(3)
    for seed in (0, 1):
        yield call(tensor(seed=seed), array), array.tolist()
