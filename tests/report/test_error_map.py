"""The errors of a tensor as numbers to draw: every element is in one cell and at most one bin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.report.error_map import CELLS, error_map

SHAPES = st.lists(st.integers(1, 9), max_size=6).map(tuple)


@given(SHAPES, st.integers(0, 1000))
def test_the_wrong_element_is_in_the_map_and_in_the_histogram(shape: tuple[int, ...], place: int) -> None:
    truth = torch.ones(shape, dtype=torch.float64)
    compiled = torch.ones(shape)
    compiled.view(-1)[place % compiled.numel()] = 101.0
    found = error_map("out", torch.ones(shape), compiled, truth)
    assert found is not None
    cells = [cell for row in found.rows for cell in row]
    assert len(found.rows) <= CELLS
    assert all(len(row) == len(found.rows[0]) <= CELLS for row in found.rows)
    assert [cell for cell in cells if cell] == [100.0]
    assert found.shape == shape
    assert found.compiled == (1,)
    assert found.eager == (0,)
    assert found.edges[0] <= 2.0 <= found.edges[-1]


@pytest.mark.parametrize(
    ("shape", "dims", "size"),
    [
        ((), ("", ""), (1, 1)),
        ((5,), ("", "dim 0 (5)"), (1, 5)),
        ((8, 12, 768), ("dims 0 to 1 (96)", "dim 2 (768)"), (64, 64)),
        ((1, 3, 224, 224), ("dims 0 to 2 (672)", "dim 3 (224)"), (64, 64)),
        ((10_000,), ("dim 0 (10000), 100 elements a row", ""), (64, 64)),
        ((70,), ("dim 0 (70), 64 elements a row", ""), (2, 64)),
    ],
)
def test_rows_and_columns_say_what_they_are(
    shape: tuple[int, ...], dims: tuple[str, str], size: tuple[int, int]
) -> None:
    eager = torch.zeros(shape)
    found = error_map("out", eager, eager + 1, eager.double())
    assert found is not None
    assert found.dims == dims
    assert (len(found.rows), len(found.rows[0])) == size


def test_a_cell_without_an_element_says_so() -> None:
    found = error_map("out", torch.zeros(70), torch.ones(70), None)
    assert found is not None
    assert found.rows[1][5:7] == (1.0, None)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.complex64, torch.bfloat16])
def test_every_type_of_number_has_errors(dtype: torch.dtype) -> None:
    eager, compiled = torch.tensor([0, 1, 1]).to(dtype), torch.tensor([1, 1, 0]).to(dtype)
    found = error_map("out", eager, compiled, None)
    assert found is not None
    assert (found.rows, found.against) == (((1.0, 0.0, 1.0),), "eager")
    assert (sum(found.compiled), found.eager) == (2, ())


def test_what_is_not_finite_on_one_side_alone_is_a_cell_of_its_own_meaning() -> None:
    inf, nan = math.inf, math.nan
    truth = torch.tensor([1.0, inf, nan, inf, 1.0], dtype=torch.float64)
    compiled = torch.tensor([nan, inf, nan, -inf, 1.5])
    found = error_map("out", truth.float(), compiled, truth)
    assert found is not None
    assert found.rows == ((inf, 0.0, 0.0, inf, 0.5),)
    assert found.non_finite == 2
    assert sum(found.compiled) == 1


def test_equal_values_leave_no_bins() -> None:
    found = error_map("out", torch.zeros(3), torch.zeros(3), None)
    assert found is not None
    assert (found.edges, found.compiled) == ((), ())


@pytest.mark.parametrize(
    ("eager", "compiled"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(0), torch.zeros(0)),
        (torch.zeros(2, 2).to_sparse(), torch.zeros(2, 2).to_sparse()),
    ],
)
def test_what_cannot_be_set_side_by_side_has_no_map(eager: torch.Tensor, compiled: torch.Tensor) -> None:
    assert error_map("out", eager, compiled, None) is None


def test_large_errors_of_both_sides_share_their_bins() -> None:
    truth = torch.zeros(1000, dtype=torch.float64)
    eager, compiled = torch.full((1000,), 1e-30), torch.full((1000,), 1e30)
    found = error_map("out", eager, compiled, truth)
    assert found is not None
    assert len(found.compiled) <= 40
    assert (found.eager[0], found.compiled[-1]) == (1000, 1000)
    assert found.edges[0] <= -30 < 30 <= found.edges[-1]
