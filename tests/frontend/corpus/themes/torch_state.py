"""What torch knows apart from tensors: dtypes, devices, defaults, modes, questions about scripting."""

from __future__ import annotations

import os
import sys
import typing

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.frontend.corpus.registry import case


@case
def limits_of_dtypes(a, b):
    return (
        a.clamp(max=torch.finfo(a.dtype).max),
        torch.finfo(torch.float16).eps,
        torch.iinfo(torch.int32).max,
        torch.finfo(a.dtype).tiny,
        torch.finfo(torch.bfloat16).bits,
    )


@case
def mask_with_the_smallest_number(a, b):
    return a.masked_fill(b > 0, torch.finfo(a.dtype).min)


@case
def attributes_of_dtypes(a, b):
    return (
        torch.float32.is_floating_point,
        torch.int64.is_signed,
        torch.complex64.is_complex,
        torch.float64.itemsize,
        str(a.dtype),
        a.dtype is torch.float32,
        torch.complex64.to_real(),
    )


@case
def promotion(a, b):
    return (
        torch.promote_types(torch.int32, torch.float16),
        torch.result_type(a, 2),
        torch.can_cast(torch.double, torch.int),
        a.to(torch.promote_types(a.dtype, torch.float64)),
    )


@case
def default_dtype(a, b):
    return torch.zeros(2, dtype=torch.get_default_dtype()), torch.get_default_dtype() == torch.float32, b


@case
def devices(a, b):
    device = torch.device("cpu")
    return (
        torch.ones(2, device=device),
        device.type,
        device.index,
        a.device == device,
        str(torch.device("cuda:1")),
        torch.device("cuda", 0),
    )


@case
def availability(a, b):
    if torch.cuda.is_available() and a.is_cuda:
        return a
    return b, torch.backends.mps.is_available() if sys.platform == "darwin" else False


@case
def scripting_and_tracing(a, b):
    if torch.jit.is_scripting() or torch.jit.is_tracing():
        return a
    return a + b, torch.jit.annotate(typing.List[int], [1])


@case
def is_tensor(a, b):
    return torch.is_tensor(a), torch.is_tensor([a]), torch.is_floating_point(b), torch.is_storage(a)


@case
def grad_enabled(a, b):
    if torch.is_grad_enabled():
        return a * 2
    return b


@case
def autocast_is_asked(a, b):
    if torch.is_autocast_enabled("cpu"):
        return a.bfloat16()
    return b, torch.get_autocast_dtype("cpu")


@case(breaks=None)
def generator_state_and_seed(a, b):
    torch.manual_seed(7)
    return a + torch.rand(4)


@case
def type_names(a, b):
    return a.type() == "torch.FloatTensor", a.__class__ is torch.Tensor, a.dtype.__class__.__name__


@case
def environment_variables(a, b):
    if os.environ.get("TORCHREPRO_NO_SUCH_VARIABLE", "0") == "1":
        return a
    return b, "PATH" in os.environ


@case
def versions(a, b):
    if sys.version_info >= (3, 8) and torch.__version__ >= "1":
        return a + b
    return a


@case
def threads_and_determinism(a, b):
    return a + 1, torch.are_deterministic_algorithms_enabled(), torch.get_num_threads() > 0


@case
def overrides_are_asked(a, b):
    if torch.overrides.has_torch_function((a, b)):
        return a
    return a + b


@case
def is_compiling_is_asked(a, b):
    return a + (b if torch.compiler.is_compiling() else b)


@case
def named_constants(a, b):
    return a * torch.pi, torch.inf, a.masked_fill(a > 0, torch.nan), torch.e


@case
def typing_helpers(a, b):
    values = typing.cast(list, [a])
    if typing.TYPE_CHECKING:
        return b
    return values, typing.get_origin(list[int]) is list


@case
def distributed_is_asked(a, b):
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return a
    return b


@case(breaks=None)
def gradients_of_a_function(a, b):
    return torch.func.vmap(lambda x, y: x * y + 1)(a, b)


@case(breaks=None)
def gradient_inside(a, b):
    x = a.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((x * b).sum(), x)
    return gradient


class Doubling(TorchFunctionMode):
    """Changes what is computed, and keeps a log of what it has seen."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.add else result


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@case(breaks=None, keep=lambda: (Doubling(), Counting()))
def mode_of_the_user_sees_each_call(functions, operators, a, b):
    with functions:
        c = torch.add(a, b)
    with operators:
        return c.relu(), list(functions.seen), list(operators.seen)


@case(breaks=None, keep=lambda: (Doubling(),))
def break_under_a_mode_of_the_user(mode, a, b):
    with mode:
        c = torch.add(a, b)
        print("under a mode")
        c = torch.add(c, b)
    return torch.add(c, 1), mode.seen


@case(breaks=None)
def transform_under_a_mode_of_the_user(a, b):
    with Doubling() as mode:
        c = torch.vmap(lambda x, y: torch.add(x, y))(a, b)
    return c, mode.seen


@case(breaks=None, keep=lambda: (Doubling(),))
def mode_of_the_user_entered_by_hand(mode, a, b):
    mode.__enter__()
    try:
        c = torch.add(a, b)
    finally:
        mode.__exit__(None, None, None)
    return torch.add(c, 1), list(mode.seen)


@case
def question_whether_a_tensor_is_fake(a, b):
    return isinstance(a, FakeTensor), isinstance(a + b, (FakeTensor, int)), a + 1


@case(breaks=None, keep=lambda: (torch.nn.Linear(4, 4).double(),))
def module_converted_inside(linear, a, b):
    return linear.to(torch.float32)(a), linear.weight.dtype
