"""A captured module is the module that it wraps: names, attributes, saving, copying."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from tests.frontend.backends.frontend_models import Mlp, Printing, batches
from torchrepro.second_opinion.api import trace


@trace(backend="eager")
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_the_keys_of_its_state_are_those_of_the_original() -> None:
    model = Mlp()
    traced = trace(model, backend="eager")
    assert list(traced.state_dict()) == list(model.state_dict())
    assert [name for name, _ in traced.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert [name for name, _ in traced.named_buffers()] == [name for name, _ in model.named_buffers()]
    assert [name for name, _ in traced.named_modules()] == [name for name, _ in model.named_modules()]


def test_its_state_is_saved_and_loaded() -> None:
    first, second = Mlp(), Mlp()
    saved = io.BytesIO()
    torch.save(trace(first, backend="eager").state_dict(), saved)
    saved.seek(0)
    traced = trace(second, backend="eager")
    traced.load_state_dict(torch.load(saved))
    x = batches(1)[0][0]
    first.eval()
    traced.eval()
    assert torch.equal(first(x), traced(x))


def test_a_parent_saves_and_loads_as_if_it_were_the_original() -> None:
    plain = nn.Sequential(Mlp(), nn.Linear(3, 2))
    mixed = nn.Sequential(trace(Mlp(), backend="eager"), nn.Linear(3, 2))
    assert list(mixed.state_dict()) == list(plain.state_dict())
    mixed.load_state_dict(plain.state_dict())
    plain.load_state_dict(mixed.state_dict())
    x = batches(1)[0][0]
    assert torch.equal(plain.eval()(x), mixed.eval()(x))


def test_writing_an_attribute_writes_it_to_the_original() -> None:
    model = Printing()
    traced = trace(model, backend="eager")
    traced.calls = 7
    traced(batches(1)[0][0])
    assert model.calls == traced.calls == 8
    del traced.calls
    assert not hasattr(model, "calls")


def test_the_training_flag_is_that_of_the_original() -> None:
    model = Mlp()
    traced = trace(model, backend="eager")
    model.eval()
    assert not traced.training
    traced.train()
    assert model.training
    assert model.drop.training


def test_hooks_of_the_wrapper_and_of_the_original_are_called() -> None:
    model = nn.Linear(4, 4)
    traced = trace(model, backend="eager")
    seen: list[str] = []
    traced.register_forward_hook(lambda *_: seen.append("outside"))
    model.register_forward_hook(lambda *_: seen.append("inside"))
    traced(torch.ones(1, 4))
    assert seen == ["inside", "outside"]


def test_a_copy_has_parameters_of_its_own() -> None:
    model = Mlp().eval()
    traced = trace(model, backend="eager")
    x = batches(1)[0][0]
    before = traced(x)
    other = copy.deepcopy(traced)
    with torch.no_grad():
        other.last.bias.add_(1)
    assert torch.equal(traced(x), before)
    assert torch.allclose(other(x), before + 1)


def test_a_captured_module_is_pickled_with_its_settings() -> None:
    traced = trace(Mlp().eval(), backend="eager")
    x = batches(1)[0][0]
    other = pickle.loads(pickle.dumps(traced))
    assert torch.equal(other(x), traced(x))
    assert type(other) is type(traced)


def test_a_captured_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy([doubled])[0] is doubled


def test_a_captured_function_without_a_name_cannot_be_pickled() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(trace(lambda x: x, backend="eager"))


def test_converting_the_wrapper_converts_the_original() -> None:
    model = nn.LSTM(4, 3)
    traced = trace(model, backend="eager")
    traced.to(torch.float64)
    out, _ = traced(torch.ones(2, 1, 4, dtype=torch.float64))
    assert out.dtype == torch.float64


class Table(nn.ModuleDict):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self["first"](x)


def test_it_has_the_special_methods_of_the_original() -> None:
    layers = nn.Sequential(nn.ReLU(), nn.Tanh())
    layers.mark = 1
    traced = trace(layers, backend="eager")
    assert len(traced) == 2
    assert traced[1] is layers[1]
    assert list(traced) == list(layers)
    assert "mark" in dir(traced)
    assert not trace(nn.Sequential(), backend="eager")
    traced[0] = nn.Sigmoid()
    assert type(layers[0]) is nn.Sigmoid
    table = trace(Table({"first": nn.ReLU()}), backend="eager")
    assert "first" in table
    assert "second" not in table
    del table["first"]
    assert len(table) == 0


def test_it_has_no_special_methods_that_the_original_lacks() -> None:
    traced = trace(Mlp(), backend="eager")
    assert not hasattr(traced, "__len__")
    assert bool(traced)
    with pytest.raises(TypeError, match="not iterable"):
        iter(traced)
    assert type(copy.deepcopy(traced)) is type(traced)


def test_a_verified_module_has_them_too() -> None:
    layers = nn.Sequential(nn.ReLU(), nn.Tanh())
    verified = trace(layers, backend="eager", verify=True)
    assert len(verified) == len(copy.deepcopy(verified)) == 2
    assert type(copy.deepcopy(verified)) is type(verified)
    assert torch.equal(verified(torch.ones(2)), layers(torch.ones(2)))
