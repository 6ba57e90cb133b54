"""Tensors: views and writes through them, gradients, modes of the caller, random numbers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontend.harness import Capture, outcome, scene, tensor


@scene
def writes_through_views_of_an_input(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        row = x[1]
        row.fill_(7)
        x[:, 0] += 1
        x.t()[2].mul_(2)
        view = x.view(-1)
        view[::2] = 0
        return row, view, x.sum()

    call = capture(function)
    for _ in range(2):
        x = tensor()
        yield call(x), x


@scene
def a_view_is_returned_and_changed_later(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x[0], x.t(), x.detach(), x.expand(2, 3, 4)

    call = capture(function)
    for _ in range(2):
        x = tensor()
        row, turned, detached, expanded = call(x)
        row.zero_()
        yield x, turned, detached, expanded, row._is_view()


@scene
def a_view_across_a_break(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        row = x[0]
        total = float(x.sum())
        row.add_(total)
        return x, row

    call = capture(function)
    for _ in range(2):
        x = tensor()
        yield call(x), x


@scene
def an_intermediate_changed_across_a_break(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        view = y[1:]
        alias = y
        y.item if y.numel() == 1 else print(end="")
        view.zero_()
        return y, alias is y, view

    call = capture(function)
    for step in range(2):
        yield call(tensor(seed=step))


@scene
def the_argument_itself_is_returned(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, items: list[Any], table: dict[str, Any]) -> Any:
        x += 1
        return x, items, table, items[0], table["t"]

    call = capture(function)
    x, items = tensor(), [tensor(seed=1)]
    table = {"t": x}
    a, b, c, d, e = call(x, items, table)
    yield a is x, b is items, c is table, d is items[0], e is x


@scene
def requires_grad_switched_between_calls(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return (x * x).sum()

    call = capture(function)
    x = tensor()
    for wanted in (False, True, False, True):
        x.requires_grad_(wanted)
        x.grad = None
        loss = call(x)
        if wanted:
            loss.backward()
        yield loss, x.grad


@scene
def requires_grad_switched_inside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x.detach().clone().requires_grad_()
        z = (y * 3).sum()
        return y, z

    call = capture(function)
    for _ in range(2):
        y, z = call(tensor())
        z.backward()
        yield y.grad, z


@scene
def an_argument_made_to_require_grad(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        x.requires_grad_(True)
        return (x * 3).sum()

    call = capture(function)
    for _ in range(2):
        x = tensor()
        call(x).backward()
        yield x.requires_grad, x.grad


@scene
def backward_inside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        loss = (x * x).sum()
        loss.backward()
        return x.grad, loss

    call = capture(function)
    x = tensor().requires_grad_()
    for _ in range(3):
        yield call(x), x.grad


@scene
def gradients_asked_for_inside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        loss = (x**3).sum()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return grad.sum()

    call = capture(function)
    for _ in range(2):
        x = tensor().requires_grad_()
        call(x).backward()
        yield x.grad


@scene
def grad_is_read(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x * 2 if x.grad is None else x * 2 - x.grad

    call = capture(function)
    x = tensor().requires_grad_()
    yield call(x)
    x.grad = torch.ones_like(x)
    yield call(x)
    x.grad.mul_(2)
    yield call(x)
    x.grad = None
    yield call(x)


@scene
def no_grad_of_the_caller(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x * 2, torch.is_grad_enabled()

    call = capture(function)
    x = tensor().requires_grad_()
    for mode in (
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
        contextlib.nullcontext,
        torch.no_grad,
    ):
        with mode():
            yield call(x)


@scene
def autocast_of_the_caller(capture: Capture) -> Iterator[Any]:
    layer = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> Any:
        return layer(x), torch.is_autocast_enabled("cpu")

    call = capture(function)
    for enabled, dtype in (
        (True, torch.bfloat16),
        (False, torch.bfloat16),
        (True, torch.float16),
        (True, torch.bfloat16),
    ):
        with torch.autocast("cpu", dtype, enabled=enabled):
            yield outcome(call, tensor())
    yield call(tensor())


@scene
def modes_changed_for_good(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, on: bool) -> Any:
        y = x * 2
        torch.set_grad_enabled(on)
        return y, x * 3

    call = capture(function)
    x = tensor().requires_grad_()
    try:
        for on in (False, True, False, False, True):
            yield call(x, on), torch.is_grad_enabled(), x * 2
    finally:
        torch.set_grad_enabled(True)


@scene
def random_numbers_in_sequence(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        noise = torch.randn(3)
        dropped = F.dropout(x, 0.5)
        if noise.sum() > 0:
            dropped = dropped + torch.rand(4)
        return noise, dropped, torch.randint(0, 10, (2,)), torch.randperm(4)

    call = capture(function)
    torch.manual_seed(7)
    for step in range(5):
        yield call(tensor(seed=step)), torch.rand(1)


@scene
def python_random_numbers(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        scale = random.random()
        pick = random.choice([1, 2, 3])
        order = [1, 2, 3, 4]
        random.shuffle(order)
        return x * scale + pick, order, random.randint(0, 100)

    call = capture(function)
    random.seed(5)
    for _ in range(4):
        yield call(tensor()), random.random()


@scene
def random_numbers_of_a_generator(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, generator: torch.Generator) -> Any:
        return x + torch.randn(4, generator=generator)

    call, generator = capture(function), torch.Generator().manual_seed(3)
    for _ in range(3):
        yield call(tensor(), generator), torch.rand(1, generator=generator)


@scene
def the_seed_is_set_inside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        torch.manual_seed(11)
        return x + torch.rand(4)

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), torch.rand(1)


@scene
def dropout_in_and_out_of_training(capture: Capture) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    call = capture(model)
    torch.manual_seed(1)
    for training in (True, True, False, True, False):
        model.train(training)
        yield call(tensor()), dict(model.named_buffers())


@scene
def attributes_of_a_tensor(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        x.seen = getattr(x, "seen", 0) + 1
        return x * x.seen

    call, x = capture(function), tensor()
    for _ in range(3):
        yield call(x), x.seen
    yield call(tensor(seed=2))


@scene
def attributes_of_an_intermediate(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        y.tag = "t"
        return y

    call = capture(function)
    for _ in range(2):
        y = call(tensor())
        yield y, y.tag


@scene
def data_and_set(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.data = y + 1
        return x * 2

    call = capture(function)
    for _ in range(2):
        x = tensor()
        yield call(x, tensor(seed=1)), x


@scene
def data_mul_in_place(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        x.data.mul_(0.5)
        with torch.no_grad():
            x.add_(1)
        return (x * 2).sum()

    call = capture(function)
    for _ in range(2):
        x = tensor().requires_grad_()
        call(x).backward()
        yield x, x.grad, x._version


@scene
def resize_and_out(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, out: torch.Tensor) -> Any:
        torch.add(x, 1, out=out)
        torch.mul(out, 2, out=out)
        return out

    call = capture(function)
    for shape in ((3, 4), (0,), (3, 4)):
        out = torch.empty(shape)
        result = call(tensor(), out)
        yield result, result is out, out


@scene
def strides_change(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x.is_contiguous(), x.reshape(-1), x.stride(), x * 2

    call = capture(function)
    for x in (tensor(), tensor(4, 3).t(), tensor(6, 4)[::2], tensor(), tensor(1, 4).expand(3, 4)):
        yield call(x)


@scene
def storage_offsets_change(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x.storage_offset(), torch.as_strided(x, (2, 2), (1, 1)), torch.as_strided(x, (2,), (1,), 0)

    call = capture(function)
    base = tensor(4, 4)
    for x in (base[0], base[1], base[2], tensor(4)):
        yield call(x)


@scene
def numbers_from_tensors(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        n = int(x.sum())
        items = x.tolist()
        y = x * n
        if y[0] > 3:
            y = y + items[1]
        return y, n, items, x[n % 2], bool(x[0]), len(x), [float(v) for v in x]

    call = capture(function)
    for values in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, -1.0]):
        yield call(torch.tensor(values))


@scene
def tensors_as_indices(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, index: torch.Tensor, items: list[Any]) -> Any:
        chosen = items[index]
        mask = x > 0
        return x[index], chosen, x[mask], torch.nonzero(mask), x[mask].shape

    call = capture(function)
    for number in (0, 1, 2, 1):
        yield call(tensor(seed=number), torch.tensor(number), ["a", "b", "c"])


@scene
def shapes_of_every_size(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        if x.shape[0] == 0:
            return "empty"
        if x.shape[0] == 1:
            return x.squeeze(0)
        return x.reshape(-1, 2).sum(0)

    call = capture(function)
    for size in (0, 1, 2, 4, 0, 1, 6):
        yield call(tensor(size, 2))


@scene
def tensors_compared_by_identity(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor, items: list[Any]) -> Any:
        found = [index for index, item in enumerate(items) if item is x]
        return found, any(item is y for item in items), x is y, y + 1

    call = capture(function)
    a, b = tensor(), tensor(seed=1)
    for first, second, items in ((a, b, [a]), (a, a, [a]), (a, b, [b]), (b, a, [a]), (a, b, [a, a])):
        yield call(first, second, items)


@scene
def parameters_shared_by_modules(capture: Capture) -> Iterator[Any]:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def function(x: torch.Tensor) -> Any:
        with torch.no_grad():
            first.weight.add_(1)
        return second(first(x))

    call = capture(function)
    yield call(tensor())
    second.weight = first.weight
    yield call(tensor())
    second.weight = nn.Parameter(first.weight.detach().clone())
    yield call(tensor())


@scene
def double_backward_and_retain(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x.tanh()
        y.retain_grad()
        return y, (y * y).sum()

    call = capture(function)
    for _ in range(2):
        x = tensor().requires_grad_()
        y, loss = call(x)
        loss.backward(retain_graph=True)
        loss.backward()
        yield x.grad, y.grad


@scene
def a_hook_on_a_tensor(capture: Capture) -> Iterator[Any]:
    seen: list[Any] = []

    def function(x: torch.Tensor) -> Any:
        y = x * 2
        y.register_hook(lambda grad: seen.append(grad.sum().item()) or grad * 10)
        return y.sum()

    call = capture(function)
    for _ in range(2):
        x = tensor().requires_grad_()
        call(x).backward()
        yield x.grad, list(seen)


@scene
def a_custom_autograd_function(capture: Capture) -> Iterator[Any]:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * scale

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return grad * x * ctx.scale * 100, None

    def function(x: torch.Tensor, scale: float) -> Any:
        return Odd.apply(x, scale) + 1

    call = capture(function)
    for scale in (2.0, 3.0, 2.0):
        x = tensor().requires_grad_()
        y = call(x, scale)
        y.sum().backward()
        yield y, x.grad


@scene
def complex_and_integer_tensors(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.conj() * y, x.is_conj(), torch.result_type(x, y), x + 1

    call = capture(function)
    for x in (
        torch.ones(3, dtype=torch.complex64) * 1j,
        torch.arange(3),
        torch.ones(3).bool(),
        torch.ones(3).to(torch.complex64).conj(),
    ):
        yield call(x, torch.ones(3, dtype=torch.complex64))


@scene
def zero_dimensional_type_promotion(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y, x * 2.5, torch.where(x > 0, x, 0.5)

    call = capture(function)
    for x, y in (
        (torch.tensor(1), torch.ones(2)),
        (torch.ones(1, dtype=torch.int64), torch.tensor(1.5)),
        (torch.tensor(1.0, dtype=torch.float64), torch.ones(2)),
    ):
        yield call(x, y)


@scene
def errors_of_torch(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x @ y

    call = capture(function)
    yield outcome(call, tensor(3, 4), tensor(4, 2))
    yield outcome(call, tensor(3, 4), tensor(3, 4))
    yield outcome(call, tensor(3, 4), tensor(4, 2).double())
    yield outcome(call, tensor(3, 4), tensor(4, 2))


@scene
def an_in_place_error_of_autograd(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        x.add_(1)
        return x

    call = capture(function)
    yield outcome(call, tensor())
    yield outcome(call, tensor().requires_grad_())
    base = tensor().requires_grad_() * 2
    yield outcome(call, base), base


@scene
def a_write_that_breaks_backward(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x.exp()
        z = y.sum()
        y.add_(1)
        return z

    call = capture(function)
    for _ in range(2):
        x = tensor().requires_grad_()
        z = call(x)
        yield outcome(lambda z=z: z.backward())[0]
