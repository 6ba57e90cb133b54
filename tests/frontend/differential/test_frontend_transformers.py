"""Models of `transformers`, captured, equal eager on fresh inputs, and train."""

from __future__ import annotations

from functools import partial

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.frontend.captured import Captured, captured
from benchmarks.frontend.models import MODELS, Model, chosen

FEW = chosen(["BertModel", "LlamaForCausalLM", "ResNetModel"])


def checked(model: Model) -> Captured:
    found = captured("traced", model.build, [partial(model.call, seed) for seed in (1, 2)])
    assert found.right, found.agrees
    assert not found.again, "the second call was captured again"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", FEW, ids=lambda model: model.name)
def test_a_model_is_one_graph_and_equals_eager(model: Model) -> None:
    found = checked(model)
    assert found.graphs == 1, found.breaks


@pytest.mark.slow
def test_a_model_trains_through_its_graph() -> None:
    (model,) = chosen(["BertModel"])
    gradients = []
    for way in ("eager", "traced"):
        module = model.build()
        call = module if way == "eager" else _traced(module)
        call(**model.call(1)).last_hidden_state.square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in module.named_parameters()})
    expected, found = gradients
    assert {name for name, grad in expected.items() if grad is not None} == {
        name for name, grad in found.items() if grad is not None
    }
    assert all(torch.equal(grad, found[name]) for name, grad in expected.items() if grad is not None)


def _traced(module: torch.nn.Module) -> torch.nn.Module:
    from tests.frontend.harness import Counting, traced

    return traced(module, Counting(), True)  # type: ignore[return-value]


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_model_equals_eager(model: Model) -> None:
    checked(model)
