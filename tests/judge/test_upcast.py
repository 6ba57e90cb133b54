"""Every way to carry a dtype ends in float64, and what cannot is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.reference import run_in_fp64
from torchrepro.judge.upcast import Upcast
from torchrepro.nouns.errors import ReferenceUnavailable

torch.manual_seed(0)
X = torch.randn(4, 6)
W = torch.randn(6, 6)
C = torch.randn(6)
X64, W64, C64 = X.double(), W.double(), C.double()
TENTH = torch.tensor(0.1).item()  # the float32 nearest to 0.1


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.softmax(F.linear(x, W), -1) @ W


def _autocast_closure(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.cat([x, x @ W], 1)


def _default_dtype(x: torch.Tensor) -> torch.Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        return x + torch.arange(6) / 7
    finally:
        torch.set_default_dtype(before)


def _out_argument(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(4, 6, dtype=torch.bfloat16)
    torch.mul(x, C, out=out)
    return out / 3


def _in_place_on_a_fresh_tensor(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(6, dtype=torch.float16)
    for row in x:
        total += row / 3
    total[1:3].mul_(7)
    return total


def _in_place_on_a_closure(x: torch.Tensor) -> torch.Tensor:
    state = CLOSURE.view(2, 3)
    CLOSURE.add_(x.sum(0) / 3)
    state[0].mul_(1 / 7)
    return CLOSURE * 1


def _in_place_on_a_closure_truth(x: torch.Tensor) -> torch.Tensor:
    state = torch.ones(6, dtype=torch.float64) + x.sum(0) / 3
    state[:3] *= 1 / 7
    return state


CLOSURE = torch.ones(6)


def _setitem(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(4, 6)
    y[:, :3] = x[:, 3:].half() / 3
    y[:, 3:] = 0.1
    return y


def _setitem_truth(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, 3:] / 3, torch.full((4, 3), 0.1, dtype=torch.float64)], 1)


def _foreach(x: torch.Tensor) -> torch.Tensor:
    rows = [row.float().clone() for row in x]
    torch._foreach_mul_(rows, 1 / 3)
    return torch.stack(rows)


class _Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.half().exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0].half().exp()


Case = tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]
CASES: dict[str, Case] = {
    "closure": (lambda x: (x @ W).relu() + C, lambda x: (x @ W64).relu() + C64),
    "half": (lambda x: (x.half() / 3).float(), lambda x: x / 3),
    "bfloat16": (lambda x: x.bfloat16().exp(), torch.exp),
    "to dtype": (lambda x: x.to(torch.float16) / 3, lambda x: x / 3),
    "to other": (lambda x: x.to(torch.ones(1, dtype=torch.bfloat16)) / 3, lambda x: x / 3),
    "type": (lambda x: x.type(torch.HalfTensor) / 3, lambda x: x / 3),
    "type_as": (lambda x: x.type_as(C.half()) / 3, lambda x: x / 3),
    "float8": (lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) / 3, lambda x: x / 3),
    "sum dtype": (lambda x: x.sum(0, dtype=torch.float32), lambda x: x.sum(0)),
    "softmax dtype": (lambda x: F.softmax(x.half(), -1, dtype=torch.float32), lambda x: F.softmax(x, -1)),
    "cumsum dtype": (lambda x: x.cumsum(0, dtype=torch.float16), lambda x: x.cumsum(0)),
    "prims cast": (lambda x: torch.ops.prims.convert_element_type(x, torch.float16) / 3, lambda x: x / 3),
    "factories": (
        lambda x: (
            x * torch.ones(6, dtype=torch.half) / torch.full((6,), 3.0)
            + torch.zeros_like(x, dtype=torch.half)
        ),
        lambda x: x / 3,
    ),
    "new_tensor": (lambda x: x * x.new_tensor([3.0]), lambda x: x * 3),
    "integers divided": (lambda x: x * (torch.arange(6) / 7), lambda x: x * (torch.arange(6).double() / 7)),
    "integers promoted": (
        lambda x: x + torch.arange(1, 7).sqrt(),
        lambda x: x + torch.arange(1, 7).double().sqrt(),
    ),
    "arange": (
        lambda x: x + torch.arange(0, 0.6, 0.1),
        lambda x: x + torch.arange(0, 0.6, 0.1, dtype=torch.float64),
    ),
    "default dtype": (_default_dtype, lambda x: x + torch.arange(6).double() / 7),
    "constant tensor keeps its rounding": (lambda x: x * torch.tensor(0.1), lambda x: x * TENTH),
    "constant list keeps its rounding": (lambda x: x * torch.as_tensor([0.1]), lambda x: x * TENTH),
    "constant of a factory is not rounded": (lambda x: x * torch.full((1,), 0.1), lambda x: x * 0.1),
    "python scalar": (lambda x: x * 0.1, lambda x: x * 0.1),
    "finfo": (
        lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).max).clamp(max=1e300) / 3,
        lambda x: torch.where(x > 0, torch.tensor(1e300, dtype=torch.float64), x) / 3,
    ),
    "autocast": (_autocast, lambda x: F.softmax(x @ W64.T, -1) @ W64),
    "autocast and cat": (_autocast_closure, lambda x: torch.cat([x, x @ W64], 1)),
    "out=": (_out_argument, lambda x: x * C64 / 3),
    "in place on a fresh tensor": (
        _in_place_on_a_fresh_tensor,
        lambda x: (x / 3).sum(0) * torch.tensor([1.0, 7, 7, 1, 1, 1], dtype=torch.float64),
    ),
    "in place on a closure": (_in_place_on_a_closure, _in_place_on_a_closure_truth),
    "setitem": (_setitem, _setitem_truth),
    "foreach": (_foreach, lambda x: x / 3),
    "a view of a closure": (lambda x: x @ W.t()[:, 1:3].contiguous(), lambda x: x @ W64.t()[:, 1:3]),
    "complex": (
        lambda x: (x.to(torch.complex64) * (0.5 + 1j) / 3).abs(),
        lambda x: (x * (0.5 + 1j) / 3).abs(),
    ),
    "view_as_real": (
        lambda x: torch.view_as_real(torch.polar(x.abs(), x)),
        lambda x: torch.stack([x.abs() * x.cos(), x.abs() * x.sin()], -1),
    ),
    "fft": (lambda x: torch.fft.rfft(x.float()).abs(), lambda x: torch.fft.rfft(x).abs()),
    "where": (lambda x: torch.where(x > 0, 1.0, x.half()) / 3, lambda x: torch.where(x > 0, 1.0, x) / 3),
    "argmax": (lambda x: x.half().argmax(-1), lambda x: x.argmax(-1)),
    "comparison": (lambda x: x.half() > 0.3, lambda x: x > 0.3),
    "custom function": (lambda x: _Custom.apply(x), torch.exp),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x.half(), W.half()), lambda x: x @ W64.T),
    "layer_norm": (
        lambda x: F.layer_norm(x.bfloat16(), (6,), C.bfloat16()),
        lambda x: F.layer_norm(x, (6,), C64),
    ),
    "vmap": (lambda x: torch.vmap(lambda row: row.half() * C)(x), lambda x: x * C64),
    "grad transform": (
        lambda x: torch.func.grad(lambda y: (y.half() * C).sin().sum())(x),
        lambda x: (x * C64).cos() * C64,
    ),
    "compiled inside": (lambda x: torch.compile(lambda y: y.half() / 3)(x), lambda x: x / 3),
    "sparse": (lambda x: torch.sparse.mm(W.to_sparse(), x.t()), lambda x: W64 @ x.t()),
    "cond": (
        lambda x: torch.cond(x.sum() > 1e9, lambda x: x.sin(), lambda x: x.half() @ W.half(), (x,)),
        lambda x: x @ W64,
    ),
}


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize("name", CASES)
def test_every_way_to_carry_a_dtype_ends_in_float64(name: str, inference: bool) -> None:
    function, truth = CASES[name]
    if inference and name in ("grad transform", "custom function"):
        pytest.skip("has no gradients")
    with torch.inference_mode(inference):
        closure_before = CLOSURE.clone()
        reference = run_in_fp64(lambda: function(X64.clone()))
        expected = truth(X64)
    value = reference.value
    if value.is_floating_point():
        assert value.dtype is torch.float64
        torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-14)
    else:
        assert torch.equal(value, expected)
    assert reference.notes == ()
    assert torch.equal(CLOSURE, closure_before)
    assert torch.get_default_dtype() is torch.float32


def test_a_closure_that_requires_grad_gets_a_float64_gradient_and_is_itself_left_alone() -> None:
    weight = torch.nn.Parameter(W.clone())

    def gradient() -> torch.Tensor:
        ((X64 @ weight.half()) / 3).sum().backward()
        return weight.grad

    reference = run_in_fp64(gradient)
    torch.testing.assert_close(
        reference.value, (X64.T @ torch.ones(4, 6, dtype=torch.float64)) / 3, rtol=1e-13, atol=1e-14
    )
    assert weight.grad is None


def test_autograd_grad_with_respect_to_a_closure_works() -> None:
    weight = torch.nn.Parameter(C.clone())
    (value,) = run_in_fp64(lambda: torch.autograd.grad((weight / 3).sin().sum(), [weight])).value
    torch.testing.assert_close(value, (C64 / 3).cos() / 3, rtol=1e-14, atol=1e-15)


def test_a_closure_handed_out_as_it_is_comes_wide_and_with_the_writes_to_it() -> None:
    state = torch.ones(3)

    def write() -> dict[str, list[torch.Tensor]]:
        state.div_(3)
        return {"state": [state]}

    assert run_in_fp64(write).value["state"][0].tolist() == [1 / 3] * 3
    assert state.tolist() == [1.0] * 3


def test_a_custom_op_is_run_in_float64_inside_as_well() -> None:
    @torch.library.custom_op("torchrepro_test::third", mutates_args=())
    def third(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float16) / 3

    assert torch.equal(run_in_fp64(lambda: third(X64)).value, X64 / 3)


def test_a_tensor_subclass_is_taken_apart_and_its_parts_widened() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    wrapped = clone_inputs(TwoTensor(X.clone(), X.clone()), dtype=torch.float64)
    value = run_in_fp64(lambda: (wrapped / 3).sum(0, dtype=torch.float32)).value
    assert torch.equal(value.a, (X64 / 3).sum(0))


@pytest.mark.filterwarnings("ignore::UserWarning")
class _Scaled(torch.Tensor):
    """A quantised weight as libraries have it: always float32 outside, and a plain tensor after any op."""

    q: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, q: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=torch.float32)

    def __init__(self, q: torch.Tensor, scale: torch.Tensor) -> None:
        self.q, self.scale = q, scale

    def __tensor_flatten__(self) -> Any:
        return ["q", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return _Scaled(inner["q"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one.q.float() * one.scale if isinstance(one, _Scaled) else one for one in args]
        return func(*plain, **(kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("outside", [False, True])
def test_a_subclass_that_stays_narrow_outside_is_widened_inside(outside: bool) -> None:
    weight = _Scaled(torch.ones(3, 4, dtype=torch.int8), torch.tensor(0.1))
    x = torch.randn(2, 4)
    widened = clone_inputs((x, weight), dtype=torch.float64)
    with Upcast():
        found = F.linear(widened[0], weight if outside else widened[1])
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, F.linear(x.double(), torch.full((3, 4), 0.1).double()))


def test_an_op_without_a_float64_kernel_runs_narrow_and_is_named() -> None:
    def quantise(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() / 3

    reference = run_in_fp64(lambda: quantise(quantise(X64)))
    assert reference.notes == (
        "aten::quantize_per_tensor has no float64 kernel and ran in float32 (2 times)",
    )
    torch.testing.assert_close(reference.value.float(), quantise(quantise(X)))


def test_an_error_of_the_function_itself_is_told_as_it_is() -> None:
    with pytest.raises(
        ReferenceUnavailable, match=r"RuntimeError: .*mat1 and mat2 shapes cannot be multiplied"
    ):
        run_in_fp64(lambda: X64 @ X64)
    with pytest.raises(ReferenceUnavailable, match="AssertionError: only float32"):
        run_in_fp64(lambda: _only_float32(X64))


def _only_float32(x: torch.Tensor) -> torch.Tensor:
    assert x.dtype is torch.float32, "only float32"
    return x


def test_bits_of_a_float_are_read_as_float32_with_a_note_or_not_at_all() -> None:
    reference = run_in_fp64(lambda: (X64.view(torch.int32) & -2).view(torch.float32) / 3)
    assert torch.equal(reference.value, (X.view(torch.int32) & -2).view(torch.float32).double() / 3)
    assert "bits of a float" in reference.notes[0]
    with pytest.raises(ReferenceUnavailable, match="read as int16"):
        run_in_fp64(lambda: X64.half().view(torch.int16))


def test_an_exception_leaves_no_mode_and_no_default_dtype_behind() -> None:
    def fail() -> None:
        torch.arange(3) / 7
        raise ValueError("stop")

    with pytest.raises(ReferenceUnavailable, match="ValueError: stop"):
        run_in_fp64(fail)
    assert torch.get_default_dtype() is torch.float32
    assert X.half().dtype is torch.float16
    assert not torch.overrides._get_current_function_mode_stack()
    with torch.compiler.set_stance("default"):
        assert torch.ones(1).dtype is torch.float32


def test_a_reference_run_inside_another_works() -> None:
    value = run_in_fp64(lambda: run_in_fp64(lambda: X64.half() / 3).value.half() / 3).value
    assert torch.equal(value, X64 / 3 / 3)
    with Upcast() as run, run:
        assert X64.half().dtype is torch.float64
    assert X64.half().dtype is torch.float16
