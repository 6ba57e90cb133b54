"""Inputs in one line: what the line makes is the tensor itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.script.inputs import SIDE_FILE, Inputs
from torchrepro.script.tensor_values import LITERAL_ELEMENTS
from torchrepro.script.tensors import Surroundings, line_for, same_tensor

_NAN = float("nan")


def _drawn(seed: int) -> torch.Tensor:
    return torch.randn(64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(17), "torch.ones(17)"),
        (torch.full((2, 3), -1.0), "torch.full((2, 3), -1.0)"),
        (torch.tensor([1.0, _NAN]), 'torch.tensor([1.0, float("nan")])'),
        (torch.arange(6).reshape(2, 3), "torch.arange(6).reshape(2, 3)"),
        (torch.arange(9.0), "torch.arange(9.0)"),
        (torch.tensor(3.0, dtype=torch.bfloat16), "torch.tensor(3.0, dtype=torch.bfloat16)"),
        (torch.ones(3, dtype=torch.int8), "torch.ones(3, dtype=torch.int8)"),
        (torch.ones(2, dtype=torch.bool), "torch.full((2,), True)"),
        (torch.tensor(-0.0), "torch.tensor(-0.0)"),
        (torch.tensor([0.1, 0.2]), "torch.tensor([0.1, 0.2])"),
        (torch.tensor([3e38, 1e30, 2.0, 1.0] * 8), "torch.tensor([3e38, 1e30, 2.0, 1.0] * 8)"),
        (torch.tensor([1.0] * 20 + [_NAN]), 'torch.tensor([1.0] * 20 + [float("nan")])'),
        (torch.ones(2, 3).t(), "torch.ones(2, 3).t()"),
        (torch.ones(3).expand(2, 3), "torch.ones(3).expand(2, 3)"),
        (
            torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)",
        ),
        (torch.zeros(3, requires_grad=True), "torch.zeros(3, requires_grad=True)"),
        (torch.zeros(2, 3).t().requires_grad_(), "torch.zeros(2, 3).t().requires_grad_()"),
        (torch.ones(4, dtype=torch.float8_e4m3fn), "torch.ones(4, dtype=torch.float8_e4m3fn)"),
        (torch.tensor([1 + 2j]), "torch.tensor([complex(1.0, 2.0)])"),
        (torch.ones(2, dtype=torch.complex64).conj(), "torch.ones(2, dtype=torch.complex64).conj()"),
        (torch._efficientzerotensor((3,)), "torch._efficientzerotensor((3,))"),
        (torch.empty(0, 3), "torch.empty(0, 3)"),
    ],
)
def test_a_tensor_is_written_as_a_person_would(tensor: torch.Tensor, text: str) -> None:
    line = line_for(tensor)
    assert line is not None
    assert line.text == text


def test_what_a_small_seed_draws_is_drawn_again() -> None:
    inputs = Inputs()
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(64, generator=generator), torch.rand(2, 40, generator=generator)
    inputs.add({"x": first, "y": second})
    assert inputs.lines == ["torch.manual_seed(0)", "x = torch.randn(64)", "y = torch.rand(2, 40)"]


def test_looking_for_a_seed_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    line_for(_drawn(7))
    assert torch.equal(torch.get_rng_state(), before)


def test_values_without_a_pattern_are_written_out_or_kept_in_a_file() -> None:
    few, many = _drawn(99)[:LITERAL_ELEMENTS], torch.cat([_drawn(99), _drawn(98)])
    inputs = Inputs()
    inputs.add({"few": few, "many": many})
    scope: dict[str, Any] = {"torch": torch}
    exec(inputs.lines[0], scope)
    assert same_tensor(scope["few"], few)
    assert max(map(len, inputs.lines[0].splitlines())) <= 100
    assert inputs.lines[1] == f'many = torch.load(Path(__file__).with_name("{SIDE_FILE}"))["many"]'
    assert set(inputs.side_files) == {SIDE_FILE}


def test_inputs_that_share_memory_share_it_in_the_script() -> None:
    memory = torch.arange(6.0)
    inputs = Inputs()
    inputs.add({"x": memory[:4], "y": memory[2:]})
    scope: dict[str, Any] = {"torch": torch}
    exec("\n".join(inputs.lines), scope)
    scope["x"].add_(1)
    assert scope["y"].tolist() == [3.0, 4.0, 4.0, 5.0]


def test_the_same_tensor_twice_is_one_name() -> None:
    x = torch.ones(2)
    assert Inputs().add({"x": x, "y": x}) == {"x": "x", "y": "x"}


def test_numbers_and_lists_are_written_into_the_call() -> None:
    made = Inputs().add({"n": 3, "p": float("inf"), "none": None, "xs": [torch.ones(2), 1]})
    assert list(made.values()) == ["3", 'float("inf")', "None", "[torch.ones(2), 1]"]


def test_the_default_dtype_of_the_repro_counts() -> None:
    around = Surroundings(default_dtype=torch.float64)
    line = line_for(torch.ones(2), around)
    assert line is not None
    assert line.text == "torch.ones(2, dtype=torch.float32)"


_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64),
]


@st.composite
def _tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(_DTYPES))
    size = draw(st.lists(st.integers(0, 4), max_size=4))
    numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 0.1, 1e-8, 3e38, 127.0, _NAN, float("inf"), 42.0])
    count = int(torch.Size(size).numel())
    drawn = draw(
        st.one_of(st.lists(numbers, min_size=count, max_size=count), numbers.map(lambda n: [n] * count))
    )
    values = torch.tensor(drawn, dtype=torch.float64)
    if not (dtype.is_floating_point or dtype.is_complex):
        values = values.nan_to_num(0.0, 0.0, 0.0).clamp(-100 if dtype.is_signed else 0, 100)
    tensor = values.to(dtype).reshape(size)
    if len(size) > 1:
        tensor = tensor.permute(draw(st.permutations(range(len(size)))))
    if tensor.numel() and draw(st.booleans()):
        tensor = (
            torch.cat([tensor, tensor]).narrow(0, 1 % tensor.shape[0], tensor.shape[0]) if size else tensor
        )
    if (dtype.is_floating_point or dtype.is_complex) and dtype.itemsize > 1 and draw(st.booleans()):
        tensor = tensor.detach().requires_grad_()
    return tensor


@given(_tensors())
@settings(max_examples=300, deadline=None)
def test_a_line_makes_the_very_same_tensor(tensor: torch.Tensor) -> None:
    line = line_for(tensor)
    assert line is not None or tensor.numel() > LITERAL_ELEMENTS // 2  # a part of a larger one counts twice
    if line is None:
        return
    with torch.random.fork_rng():
        if line.seed is not None:
            torch.manual_seed(line.seed)
        made = eval(line.text, {"torch": torch})
    assert made.dtype is tensor.dtype
    assert made.shape == tensor.shape
    assert made.stride() == tensor.stride()
    assert made.requires_grad == tensor.requires_grad
    assert same_tensor(made, tensor)
