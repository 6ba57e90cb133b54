"""Which functions of torch are called, stepped, answered or left to Python."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from torchrepro.frontend.graph_breaks import BreakKind
from torchrepro.frontend.trace.torch_rules import (
    answer,
    is_constant_fold,
    is_leaf,
    needs_guard,
    why_break,
)
from torchrepro.torch_api.modules import original_of

TENSOR = torch.ones(2)

LEAVES = [
    *(torch.add, torch.zeros, torch.einsum, torch.unique, torch.stack, torch.norm, torch._VF.lstm),
    *(F.relu, F.linear, F.dropout, F.max_pool2d, F.interpolate, F.multi_head_attention_forward),
    *(torch.linalg.norm, torch.special.erf, torch.fft.fft, F.scaled_dot_product_attention),
    *(torch.Tensor.add, torch.Tensor.unflatten, torch.Tensor.__getitem__, torch.Tensor.__rsub__),
    *(TENSOR.add, TENSOR.unflatten, TENSOR.size, torch.ops.aten.relu, torch.ops.aten.add.Tensor),
    *(torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.autocast_increment_nesting),
    *(torch.Tensor.T.__get__, torch.Tensor.shape.__get__, torch.Size([1]).numel),
]


def named(functions):
    return [getattr(function, "__qualname__", str(function)) for function in functions]


@pytest.mark.parametrize("function", LEAVES, ids=named(LEAVES))
def test_a_computation_is_called_as_a_whole(function):
    assert why_break(function) is None
    assert is_leaf(function)


STEPPED = [
    *(nn.Linear.forward, nn.Module.__call__, nn.init.xavier_uniform_, torch.distributions.Normal.log_prob),
    *(nn.MultiheadAttention.forward, torch.no_grad.__enter__, torch.autocast.__enter__),
    *(nn.utils.parametrize.is_parametrized, torch.autograd.grad_mode.set_grad_enabled.__init__, named),
]


@pytest.mark.parametrize("function", STEPPED, ids=named(STEPPED))
def test_python_code_is_stepped(function):
    assert why_break(function) is None
    assert not is_leaf(function)
    assert not is_constant_fold(function)


class Own(torch.autograd.Function):
    pass


@torch.compiler.disable
def disabled(x):
    return x


BREAKING = {
    torch._dynamo.graph_break: BreakKind.REQUESTED,
    disabled: BreakKind.REQUESTED,
    torch.save: BreakKind.OUTSIDE,
    torch.load: BreakKind.OUTSIDE,
    torch.manual_seed: BreakKind.OUTSIDE,
    torch.get_rng_state: BreakKind.OUTSIDE,
    torch.cuda.synchronize: BreakKind.OUTSIDE,
    torch.distributed.all_reduce: BreakKind.OUTSIDE,
    torch.Generator: BreakKind.OUTSIDE,
    torch.autograd.grad: BreakKind.UNSUPPORTED,
    torch.autograd.backward: BreakKind.UNSUPPORTED,
    torch.func.vmap: BreakKind.UNSUPPORTED,
    torch.vmap: BreakKind.UNSUPPORTED,
    torch.func.grad: BreakKind.UNSUPPORTED,
    torch.utils.checkpoint.checkpoint: BreakKind.UNSUPPORTED,
    torch.compile: BreakKind.UNSUPPORTED,
    torch.jit.trace: BreakKind.UNSUPPORTED,
    torch.cond: BreakKind.UNSUPPORTED,
    torch.from_numpy: BreakKind.UNSUPPORTED,
    torch.FloatTensor: BreakKind.UNSUPPORTED,
    torch.Tensor: BreakKind.UNSUPPORTED,
    nn.Parameter: BreakKind.UNSUPPORTED,
    torch.set_default_dtype: BreakKind.UNSUPPORTED,
    torch.inference_mode: BreakKind.UNSUPPORTED,
    torch._C._set_cudnn_enabled: BreakKind.UNSUPPORTED,
    torch.nn.attention.sdpa_kernel: BreakKind.UNSUPPORTED,
}


@pytest.mark.parametrize(("function", "kind"), BREAKING.items(), ids=named(BREAKING))
def test_what_python_must_run_breaks(function, kind):
    reason = why_break(function)
    assert reason is not None
    assert reason.kind is kind


def test_an_own_backward_breaks():
    reason = why_break(Own.apply)
    assert reason is not None
    assert "Own.apply" in reason.text


def test_a_device_as_context_breaks():
    assert why_break(torch.device("cpu").__enter__) is not None


@pytest.mark.parametrize(
    "function",
    [torch.is_grad_enabled, torch.finfo, torch.promote_types, torch.jit.is_scripting, torch.is_tensor],
)
def test_questions_are_answered_once(function):
    assert is_constant_fold(function)
    assert not needs_guard(function)
    assert why_break(function) is None


@pytest.mark.parametrize(
    "function", [torch.cuda.is_available, torch.get_num_threads, torch.distributed.get_rank]
)
def test_questions_about_the_process_need_a_guard(function):
    assert is_constant_fold(function)
    assert needs_guard(function)
    assert why_break(function) is None


def test_traced_code_is_told_that_it_is_compiled():
    assert answer(torch.compiler.is_compiling, (), {}) is True
    assert answer(torch.overrides.has_torch_function, ((TENSOR,),), {}) is False
    assert answer(torch.promote_types, (torch.int, torch.float), {}) is torch.float


def plain(x):
    return x + 1


def test_compiled_code_is_traced_as_what_it_was():
    assert original_of(torch.compile(plain, backend="eager")) is plain
    module = nn.Linear(2, 2)
    assert original_of(torch.compile(module, backend="eager")) is module
    assert original_of(plain) is None
    assert original_of(module) is None
    assert original_of(disabled) is None
    assert why_break(torch.compile(plain, backend="eager")) is None


def test_scripted_code_is_traced_as_what_it_was():
    scripted = torch.jit.script(plain)
    assert original_of(scripted) is plain
    assert why_break(scripted) is None
