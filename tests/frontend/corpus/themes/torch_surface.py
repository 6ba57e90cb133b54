"""torch's own surface: what tensors say of themselves, how they are made, and the blocks that torch has."""

from __future__ import annotations

import copy

import torch

from tests.frontend.corpus.registry import case


class Plain(torch.Tensor):
    """A subclass that adds nothing."""


@case(make=lambda size: (torch.randn(size, 4).as_subclass(Plain),))
def type_of_a_subclass(x):
    return type(x), x.__class__.__name__


@case
def what_the_class_says(x):
    return x.__doc__, x.__module__, hasattr(x, "mro"), hasattr(x * 2, "__name__")


@case(breaks=None)
def the_same_memory(x):
    return x.is_set_to(x), x.is_set_to(x * 1), x.view_as(x).is_set_to(x)


@case(breaks=None)
def quantized_in_between(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


@case(
    make=lambda size: (torch.randn(size, 4, requires_grad=True), torch.randn(4, 64, requires_grad=True)),
)
def mixed_precision_off_in_between(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one = x @ weight
        with torch.autocast("cpu", enabled=False):
            two = x @ weight
        three = (x * 3) @ weight
    return one, two, three


@case(make=lambda size: (torch.randn(size, 4), torch.zeros((), dtype=torch.int64)))
def result_given_by_out(x, rank):
    return torch.linalg.matrix_rank(x, out=rank) is rank


def _with_backward_hook():
    layer = torch.nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    return (layer,)


@case(keep=_with_backward_hook, make=lambda size: (torch.randn(size, 4, requires_grad=True),), breaks=None)
def hook_on_the_backward_of_a_module(layer, x):
    return layer(x)


@case(make=lambda size: (torch.zeros(4).untyped_storage(), torch.randn(size, 4)), breaks=None)
def method_of_a_storage(storage, x):
    storage.fill_(1)
    return x + 1, storage[0]


@case(keep=lambda: (torch.nn.Linear(4, 4),), breaks=None)
def deep_copy_of_a_module(layer, x):
    return copy.deepcopy(layer)(x)


@case(breaks=4)
def tensor_of_tensors_and_numbers(x, y):
    return (
        torch.tensor([x.sum(), y.sum(), 2]),
        torch.tensor([[x[0, 0] > 0, True], [False, False]]),
        torch.tensor([x[0, 0].long(), 2.5], dtype=torch.float64),
        torch.as_tensor((y[0, 0], 1)),
    )


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True),), breaks=1)
def tensor_of_tensors_has_no_gradient(x):
    made = torch.tensor([x[0, 0], x[0, 1]])
    made[0] = 3
    return made, x * 2, made.requires_grad, made.grad_fn


@case(breaks=6)
def old_constructors(x):
    return (
        torch.Tensor([[1, 2], [3, 4.5]]),
        torch.LongTensor([1.7, True]),
        torch.FloatTensor(x.shape).zero_(),
        torch.Tensor(*x.shape[:1], 2).fill_(1) + x.sum(),
        torch.Tensor(),
        torch.BoolTensor([[]]),
    )


@case(breaks=None)
def an_old_constructor_refuses(x):
    return torch.ByteTensor([300]) + x


def _tagged(size):
    x = torch.randn(size, 4)
    x.tag, x.scale = "old", torch.full((4,), 2.0)
    return x, torch.randn(size, 4)


@case(make=_tagged, breaks=5)
def attributes_put_onto_an_argument(x, y):
    found = [x.tag, hasattr(y, "tag"), x.scale * 2]
    x.tag = "new"
    y.seen = getattr(y, "seen", 0) + 1
    y.seen += 1
    x.other = y
    del x.scale
    return found, x.tag, x.other.seen, hasattr(x, "scale"), hasattr(x.view(-1), "tag")


@case(breaks=5)
def attributes_put_onto_a_result(x):
    made = x + 1
    made.tag, made.parts, made.gone, made.me = "t", [x.sum()], 0, made
    made.parts.append(2)
    made.add_(1)
    del made.gone
    return {"made": made, "parts": made.parts}, hasattr(made, "gone"), hasattr(made * 1, "tag")


@case(breaks=4)
def attributes_across_a_break(x):
    made = x * 2
    made.tag = 1
    x.tag = made
    print("here")
    made.tag += 1
    return x.tag.tag, made


@case(make=_tagged, breaks=None)
def deep_copy_of_a_tensor_with_attributes(x, y):
    return copy.deepcopy(x).tag, copy.deepcopy(y)


@case(breaks=None)
def attributes_that_torch_defines(x):
    x.grad = torch.ones_like(x)
    x.sin = 3
    return x.sin, x.grad


@torch.autocast("cpu", dtype=torch.bfloat16)
def _in_mixed_precision(x):
    return x @ x.T


_MIXED = torch.autocast("cpu", dtype=torch.bfloat16)


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True),), breaks=2)
def mixed_precision_as_a_decorator(x):
    return _in_mixed_precision(x), x @ x.T


@case(breaks=3)
def mixed_precision_from_before_the_call(x):
    with _MIXED:
        one = x @ x.T
        print("here")
        two = x @ x.T
    return one, two, x @ x.T


def _tied():
    one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    other.weight = one.weight
    return (torch.nn.Sequential(one, torch.nn.BatchNorm1d(4), other),)


@case(keep=_tied)
def functional_call_with_other_parameters(model, x):
    other = {name: parameter * 2 for name, parameter in model.named_parameters()}
    state = ({"0.weight": torch.eye(4)}, {"1.running_mean": torch.ones(4)})
    first = torch.func.functional_call(model, other, (x,))
    second = torch.func.functional_call(model, state, x)
    return first, second, model(x), model[0].weight is model[2].weight


@case(
    make=lambda size: (torch.zeros(size, 4), torch.randn(size, 4, requires_grad=True)), breaks=None, hits=True
)
def a_write_makes_a_leaf_a_result(x, y):
    before = x.is_leaf, x.grad_fn
    x.add_(y)
    return before, x.is_leaf, x.grad_fn is None, x * 2
