"""Every backend takes the recorded graphs, and what it computes is what eager computes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from frontend_recording import capture

from torchrepro.execute.compilers import backend_function
from torchrepro.nouns.repro import Compiler

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]


def elementwise(x, w):
    return (1 - x) * torch.sigmoid(x @ w) / 2


def several_results(x, w):
    top = x.topk(2, dim=-1)
    return top.values, top.indices, *torch.split(x, 2), x.T.contiguous()


def writes_an_input(x, w):
    with torch.no_grad():
        w.mul_(0.5)
        w[0] = 3
    return x @ w


def writes_a_view(x, w):
    made = x * 2
    made[:, 1:].add_(1)
    made[made > 2] = 0.0
    return made + 1


def returns_views(x, w):
    return x.view(-1), x[1:], x, (x * 2).T


def no_grad_block(x, w):
    with torch.no_grad():
        scale = (x @ w).abs().max()
    return x / scale, scale


def autocast_block(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(x, w)
    return y.float() + x


def factories(x, w):
    position = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
    mask = torch.full((4, 4), -math.inf).triu(1)
    return x + position + torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.softmax(x + mask, -1), torch.zeros(2)


def attention(x, w):
    """A block of BERT: heads, mask, scores, dropout, normalisation, feed forward."""
    heads = F.linear(x, w).view(1, 4, 2, 2).transpose(1, 2)
    scores = torch.matmul(heads, heads.transpose(-1, -2)) / math.sqrt(heads.size(-1))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.dropout(F.softmax(scores, dim=-1), 0.1, training=False)
    mixed = torch.matmul(weights, heads).transpose(1, 2).reshape(4, 4)
    hidden = F.layer_norm(x + mixed, (4,), eps=1e-12)
    fused = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return F.layer_norm(hidden + F.linear(F.gelu(hidden), w.t()), (4,)), fused


PROGRAMS = [
    elementwise,
    several_results,
    writes_an_input,
    writes_a_view,
    returns_views,
    no_grad_block,
    autocast_block,
    factories,
    attention,
]


def inputs():
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator)
    return x.requires_grad_(), w.requires_grad_()


def gradients(outputs, tensors):
    scalars = [value.float().sum() for value in outputs if value.requires_grad]
    if not scalars:
        return []
    return torch.autograd.grad(sum(scalars), tensors, allow_unused=True)


def assert_computes_the_same(program, backend):
    eager, traced = inputs(), inputs()
    captured = capture(program, *traced)
    arguments = [real for _, real in captured.inputs]

    found = backend_function(Compiler(backend))(captured.graph_module, arguments)(*arguments)
    expected = program(*eager)
    expected = expected if isinstance(expected, tuple) else (expected,)

    for one, other in zip(found, expected, strict=True):
        assert one.requires_grad == other.requires_grad
        torch.testing.assert_close(one, other)
    for one, other in zip(gradients(found, traced), gradients(expected, eager), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(traced, eager, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_a_backend_computes_values_gradients_and_writes(program, backend):
    assert_computes_the_same(program, backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_random_numbers_are_those_of_eager(backend):
    def program(x, w):
        noise = torch.rand(4, 4)
        return F.dropout(x @ w, 0.5) + noise, torch.randperm(5)

    traced = inputs()
    captured = capture(program, *traced)
    arguments = [real for _, real in captured.inputs]
    compiled = backend_function(Compiler(backend))(captured.graph_module, arguments)
    torch.manual_seed(5)
    found = compiled(*arguments)
    torch.manual_seed(5)
    expected = program(*inputs())

    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_recorded_in_inference_mode_compiles(backend):
    with torch.inference_mode():
        x, w = torch.randn(4, 4), torch.randn(4, 4)
        captured = capture(lambda x, w: (x @ w).relu_(), x, w)
        arguments = [real for _, real in captured.inputs]
        found = backend_function(Compiler(backend))(captured.graph_module, arguments)(*arguments)
        assert torch.equal(found[0], (x @ w).relu())


@pytest.mark.thorough  # CI has inductor in tests/frontend/backends
def test_inductor_computes_values_and_gradients():
    assert_computes_the_same(attention, "inductor")
