"""Operator contracts: every broken promise is found with its line, and no healthy operator is accused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract_operators as ops
import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)

from torchrepro.execute.operator_calls import Calls
from torchrepro.execute.operator_contracts import check_operators
from torchrepro.nouns.contracts import Contract, OperatorChecks, read_checks
from torchrepro.user_code.registrations import functions_of

OPERATORS = torch.ops.contracts


def checks(function: Callable[[], Any], tmp_path: Path) -> OperatorChecks:
    def eager(calls: Calls) -> None:
        with calls:
            function()

    tmp_path.mkdir(exist_ok=True)
    log = tmp_path / "log"
    check_operators(eager, log)
    return read_checks(log)


def called(name: str, tmp_path: Path) -> OperatorChecks:
    x = torch.randn(3, 4, requires_grad="backward" in functions_of(f"contracts::{name}"))
    return checks(lambda: getattr(OPERATORS, name)(x * 1 if x.requires_grad else x), tmp_path)


def line_of(function: Callable[..., Any]) -> str:
    return f"contract_operators.py:{inspect.getsourcelines(function)[1]}"


def line_at(place: str) -> str:
    number = int(place.removeprefix("contract_operators.py:"))
    return Path(ops.__file__).read_text().splitlines()[number - 1]


@pytest.mark.parametrize(
    ("name", "contract", "subject", "wrong"),
    [
        ("stride", Contract.STRIDE, "result", ops.same),
        ("shape", Contract.SHAPE, "result", ops.fake_of_another_shape),
        ("dtype", Contract.DTYPE, "result", ops.fake_of_another_dtype),
        ("device", Contract.DEVICE, "result", ops.fake_on_another_device),
        ("outputs", Contract.OUTPUTS, "results", None),
        ("fake", Contract.FAKE, "fake kernel", ops.fake_that_raises),
        ("mutation", Contract.MUTATION, "argument x", None),
        ("alias", Contract.ALIAS, "result", None),
        ("list", Contract.ALIAS, "result", None),
        ("two_results", Contract.ALIAS, "result[1]", None),
        ("determinism", Contract.DETERMINISM, "result", ops.counts_its_calls),
        ("backward", Contract.BACKWARD, "gradient of x", ops.wrong_backward),
        ("narrow", Contract.BACKWARD, "gradient of x", ops.wrong_backward),
        ("statistics", Contract.BACKWARD, "gradient of x", ops.wrong_for_the_first),
        ("apart", Contract.BACKWARD, "gradient of x", ops.wrong_for_the_first),
        ("dropout", Contract.BACKWARD, "gradient of x", ops.unscaled),
    ],
)
def test_a_broken_promise_is_found_with_its_line_and_its_twin_is_not_accused(
    name: str, contract: Contract, subject: str, wrong: Callable[..., Any] | None, tmp_path: Path
) -> None:
    found = called(name, tmp_path)
    assert found.operators == (f"contracts::{name}",)
    assert [(one.contract, one.subject) for one in found.violations] == [(contract, subject)]
    (violation,) = found.violations
    if wrong is not None:
        assert violation.registered == line_of(wrong)
    else:
        assert f'"{name}"' in line_at(violation.registered)
    assert violation.remedy
    assert "test_operator_contracts.py" in violation.source
    assert called(f"{name}_healthy", tmp_path / "twin").violations == ()


def test_what_is_declared_and_does_not_happen_is_no_violation(tmp_path: Path) -> None:
    assert called("declared_healthy", tmp_path).violations == ()


def test_an_operator_with_a_sparse_result_is_checked(tmp_path: Path) -> None:
    found = called("sparse", tmp_path)
    assert found.violations == ()
    said = "contracts::sparse: determinism not checked: it returns a tensor of another layout or class"
    assert said in found.skipped


def test_a_gradient_that_differs_by_a_factor_says_the_factor(tmp_path: Path) -> None:
    (violation,) = called("backward", tmp_path).violations
    assert violation.remedy.endswith("which is 2 times what it returns")
    assert "float64" in violation.seen
    (narrow,) = called("narrow", tmp_path / "narrow").violations
    assert "float32" in narrow.seen


def test_a_surrogate_gradient_and_a_kink_are_not_called_wrong(tmp_path: Path) -> None:
    found = called("straight_through", tmp_path)
    assert found.violations == ()
    assert found.skipped == (
        "contracts::straight_through: backward not checked: it is piecewise constant, "
        "so its gradient is a surrogate by intent",
    )
    reversal = called("reversal", tmp_path / "reversal")
    assert reversal.violations == ()
    assert "its result is its argument" in reversal.skipped[0]
    x = torch.randn(64).relu().requires_grad_()  # half of it lies on the kink
    on_the_kink = checks(lambda: OPERATORS.positive(x * 1), tmp_path / "kink")
    assert on_the_kink.violations == ()
    assert on_the_kink.skipped == ()


def test_each_form_of_a_call_is_checked_and_the_operators_of_torch_are_not_blamed(tmp_path: Path) -> None:
    x = torch.randn(4, 4)

    def program() -> None:
        OPERATORS.stride(x[:1])  # one row: every stride is right
        OPERATORS.stride(x)
        torch.nn.functional.scaled_dot_product_attention(*(x[None, None],) * 3)
        torch.nn.functional.conv2d(x[None, None].contiguous(memory_format=torch.channels_last), x[None, None])
        x.nonzero()
        torch.cond(x.sum() > 0, lambda y: OPERATORS.shape(y), lambda y: OPERATORS.shape(y), (x,))

    found = checks(program, tmp_path)
    assert [(one.op, one.contract) for one in found.violations] == [
        ("contracts::stride", Contract.STRIDE),
        ("contracts::shape", Contract.SHAPE),
    ]
    assert not any(one.counts for one in found.differences)


def test_what_was_found_before_a_crash_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    called("stride", tmp_path)
    lines = log.read_text().splitlines(keepends=True)
    died = next(place for place, line in enumerate(lines) if "determinism" in line)
    log.write_text("".join(lines[: died + 1]) + '{"viol')
    found = read_checks(log)
    assert len(found.violations) == 1
    assert found.skipped == ("contracts::stride: determinism not checked: the process died in it",)


class Kernel:
    """Stands in for a kernel of Triton, which is not installed here: what torch asks of one, in Python."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.arg_names = list(inspect.signature(fn).parameters)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.fn


def doubles(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


def counts_its_launches(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * next(ops._CALLS))


def uses_its_input_up(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x.mul_(2))


def sums_its_neighbours(x: torch.Tensor, out: torch.Tensor) -> None:
    for place in range(1, len(x)):
        out[place] = x[place] + x[place - 1]


KERNELS: list[tuple[Callable[..., None], Contract | None]] = [
    (doubles, None),
    (counts_its_launches, Contract.DETERMINISM),
    (uses_its_input_up, Contract.MUTATION),
]


@pytest.mark.parametrize(("function", "contract"), KERNELS)
@pytest.mark.parametrize("functional", [False, True])
def test_a_triton_kernel_is_checked_where_a_graph_launches_it(
    function: Callable[..., None], contract: Contract | None, functional: bool, tmp_path: Path
) -> None:
    constants = {"constant_args_idx": kernel_side_table.add_constant_args({})}
    where = {"kernel_idx": kernel_side_table.add_kernel(Kernel(function)), **constants}
    given = {"kwargs": {"x": torch.randn(4), "out": torch.zeros(4)}, "grid": [(1,)]}
    cloned = {"tensors_to_clone": ["out"]} if functional else {}
    wrapper = triton_kernel_wrapper_functional if functional else triton_kernel_wrapper_mutation
    found = checks(lambda: wrapper(**where, **given, **cloned, tma_descriptor_metadata={}), tmp_path)
    name = f"Triton kernel {function.__name__}"
    assert found.operators == (name,)
    # Before AOT nobody says what a kernel writes to.
    broken = contract is not None and (functional or contract is not Contract.MUTATION)
    assert [(one.op, one.contract) for one in found.violations] == [(name, contract)] * broken
    if broken:
        line = inspect.getsourcelines(function)[1]
        assert found.violations[0].registered.endswith(f"test_operator_contracts.py:{line}")


@pytest.mark.parametrize("function", [doubles, sums_its_neighbours])
@pytest.mark.parametrize("shared", [False, True])
def test_a_triton_kernel_may_share_memory_where_it_does_not_depend_on_it(
    function: Callable[..., None], shared: bool, tmp_path: Path
) -> None:
    x = torch.arange(1.0, 5.0)
    given = {"kwargs": {"x": x, "out": x if shared else torch.zeros(4)}, "grid": [(1,)]}
    constants = {"constant_args_idx": kernel_side_table.add_constant_args({})}
    where = {"kernel_idx": kernel_side_table.add_kernel(Kernel(function)), **constants}
    found = checks(
        lambda: triton_kernel_wrapper_mutation(**where, **given, tma_descriptor_metadata={}), tmp_path
    )
    depends = shared and function is sums_its_neighbours
    assert [(one.contract, one.subject) for one in found.violations] == (
        [(Contract.ALIAS, "argument out")] if depends else []
    )
