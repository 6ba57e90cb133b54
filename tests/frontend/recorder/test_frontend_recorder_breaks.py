"""What cannot be recorded is a break with a reason."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from frontend_recording import break_of, capture, new_recorder, replay
from torch import nn

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.source import Local

DATA = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum() > 0),
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "index": lambda x: [1, 2][x.sum().long()],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: torch.unique(x),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "numpy": lambda x: x.detach().numpy(),
    "asarray": lambda x: np.asarray(x),
    "repr": lambda x: repr(x),
    "str": lambda x: str(x),
    "format": lambda x: f"{x.sum():.2f}",
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "contains": lambda x: 3 in x,
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones_like(x).long()),
    "argwhere": lambda x: torch.argwhere(x),
    "bincount": lambda x: x.long().bincount(),
    "range": lambda x: list(range(x.sum().long())),
    "assert": lambda x: torch._assert(bool(x.any()), ""),
}


@pytest.mark.parametrize("program", DATA.values(), ids=DATA.keys())
def test_values_of_tensors_are_not_known(program):
    assert break_of(program, torch.ones(3)).kind is BreakKind.DATA


class Double(torch.Tensor):
    pass


UNSUPPORTED = {
    "backward": lambda x: (x * 2).sum().backward(),
    "grad": lambda x: torch.autograd.grad((x * 2).sum(), x),
    "register_hook": lambda x: (x * 2).register_hook(print),
    "retain_grad": lambda x: (x * 2).retain_grad(),
    "requires_grad_": lambda x: x.requires_grad_(False),
    "requires_grad": lambda x: setattr(x.detach(), "requires_grad", True),
    "data": lambda x: setattr(x, "data", x.detach()),
    "grad =": lambda x: setattr(x, "grad", None),
    "set_": lambda x: x.detach().set_(x.detach()),
    "resize_": lambda x: x.detach().resize_(2),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage(),
    "version": lambda x: x._version,
    "grad_fn": lambda x: (x * 2).grad_fn,
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x),
    "leaf": lambda x: torch.zeros(3, requires_grad=True),
    "generator": lambda x: torch.rand(3, generator=torch.Generator()),
    "sparse": lambda x: x.to_sparse(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "tensor of tensor": lambda x: torch.tensor(x.detach()),
    "inference mode": lambda x: _in_inference_mode(x),
    "object": lambda x: torch.add(x, object),
}


def _in_inference_mode(x):
    with torch.inference_mode():
        return x + 1


@pytest.mark.parametrize("program", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_graphs_do_not_hold_is_a_break(program):
    try:
        reason = break_of(program, torch.ones(3, requires_grad=True))
    except TypeError:  # the operation itself does not take such an argument
        return
    assert reason.kind is BreakKind.UNSUPPORTED
    assert reason.text


def test_a_tensor_inside_of_data_is_a_break():
    assert break_of(lambda x: torch.tensor([[x.sum(), 1.0]]), torch.ones(3)).kind is BreakKind.DATA


def test_a_constant_that_was_written_is_not_a_constant_any_more():
    def program(x):
        number = torch.tensor(3.0)
        number.add_(x.sum())
        return number.item()

    assert break_of(program, torch.ones(3)).kind is BreakKind.DATA


def test_a_constant_that_was_filled_from_random_numbers_is_not_known():
    assert break_of(lambda x: torch.rand(()).item(), torch.ones(3)).kind is BreakKind.DATA


def test_a_real_tensor_is_a_break():
    outside = torch.ones(3)

    assert break_of(lambda x: x + outside, torch.ones(3)).kind is BreakKind.OPAQUE
    assert break_of(lambda x: x + torch.from_numpy(np.ones(3)), torch.ones(3)).kind is BreakKind.UNSUPPORTED
    assert break_of(lambda x: x + torch.Tensor([1, 2, 3]), torch.ones(3)).kind is BreakKind.UNSUPPORTED


KINDS = {
    "torch.sparse_coo": lambda: torch.eye(2).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "Double": lambda: torch.ones(2).as_subclass(Double),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "UninitializedParameter": lambda: nn.UninitializedParameter(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("named", "make"), KINDS.items(), ids=KINDS.keys())
def test_a_tensor_of_another_kind_is_no_input(named, make):
    recorder = new_recorder()
    real = make()
    with recorder.active(), pytest.raises(Break) as caught:
        recorder.input(real, Local("x"), "x")
    assert named in caught.value.reason.text
    assert caught.value.reason.kind is BreakKind.UNSUPPORTED


def test_an_error_of_the_operation_itself_is_not_a_break():
    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        capture(lambda x: x @ torch.ones(5, 5), torch.ones(3, 3))
    with pytest.raises(IndexError):
        capture(lambda x: x[7], torch.ones(3))
    with pytest.raises(TypeError):
        capture(lambda x: x + "text", torch.ones(3))


@torch.library.custom_op("torchrepro_recorder::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    "program",
    [lambda x: x[:1].expand(3).mul_(2), lambda x: x[1:].add_(x[:-1])],
    ids=["expanded", "overlapping"],
)
def test_a_write_that_only_real_memory_refuses_is_left_to_python(program):
    with pytest.raises(RuntimeError, match="refer"):
        program(torch.ones(3))
    assert break_of(program, torch.ones(3)).kind is BreakKind.RAISES


def test_parts_of_one_tensor_may_be_written_from_each_other():
    def program(x):
        x[:2].add_(x[2:])
        x[::2].mul_(x[1::2])
        return x.add_(x)

    x, y = torch.arange(4.0), torch.arange(4.0)

    assert torch.equal(replay(capture(program, x))[0], program(y))


def test_an_operator_without_a_fake_is_a_break_that_names_it():
    reason = break_of(lambda x: without_fake(x), torch.ones(3))

    assert reason.kind is BreakKind.UNSUPPORTED
    assert "without_fake" in reason.text


def test_grad_that_is_none_may_be_read():
    def program(x):
        assert x.grad is None
        return x * 2

    capture(program, torch.ones(3, requires_grad=True))


def test_a_grad_that_is_there_is_a_break():
    x = torch.ones(3, requires_grad=True)
    x.sum().backward()

    assert break_of(lambda x: x.grad + 1, x).kind is BreakKind.UNSUPPORTED


def test_requires_grad_as_it_is_changes_nothing():
    capture(lambda x: x.requires_grad_() * 2, torch.ones(3, requires_grad=True))


def test_setting_by_a_mask_is_fine():
    def program(x):
        x[x > 0] = 0.0
        return x

    capture(program, torch.ones(3))
