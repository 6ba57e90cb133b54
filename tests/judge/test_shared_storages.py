"""Which storages the runs of a graph share, and how a write to one of them is seen."""

from __future__ import annotations

import ctypes

import pytest
import torch

from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.execute import LARGE, changed_storages, fingerprints, storages_only_read
from torchrepro.torch_api.tensors import storage_number


def numbers(*tensors: torch.Tensor) -> set[int]:
    return {storage_number(tensor.untyped_storage()) for tensor in tensors}


def test_large_inputs_that_are_only_read_are_shared() -> None:
    large, small, written = torch.zeros(LARGE), torch.zeros(3), torch.zeros(LARGE)
    inputs = (large, small, written, written[1:], 3)
    assert set(storages_only_read(inputs, {2})) == numbers(large)


def test_two_storages_over_the_memory_that_is_written_to_are_both_copied() -> None:
    array = torch.zeros(LARGE).numpy()
    one, other = torch.from_numpy(array), torch.from_numpy(array)
    assert numbers(one) != numbers(other)
    assert storages_only_read((one, other), {0}) == {}


def test_nothing_is_shared_next_to_a_tensor_that_may_hold_other_memory() -> None:
    assert storages_only_read((torch.zeros(LARGE), torch.eye(3).to_sparse()), ()) == {}


def test_a_clone_over_shared_memory_is_a_tensor_of_its_own() -> None:
    weight = torch.nn.Parameter(torch.zeros(LARGE))
    weight.grad = torch.ones(LARGE)
    keep = storages_only_read((weight,), ())
    (clone,) = clone_inputs((weight,), keep=keep)
    assert type(clone) is torch.nn.Parameter
    assert clone.data_ptr() == weight.data_ptr()
    assert clone.grad.data_ptr() == weight.grad.data_ptr()
    clone.sum().backward()
    clone.grad = None
    assert weight.grad is not None
    (copied,) = clone_inputs((weight,))
    assert copied.data_ptr() != weight.data_ptr()


@pytest.mark.parametrize("size", [LARGE, LARGE + 4096 * 8 + 7])
@pytest.mark.parametrize(
    ("source", "target", "count"),
    [(0, 8, 1), (8, 0, 8), (4096 * 8, 0, 8), (-1, 0, 1), (0, -1, 1), (5, 9, LARGE // 2)],
)
def test_bytes_that_change_places_change_the_fingerprint(
    size: int, source: int, target: int, count: int
) -> None:
    """Written through a pointer: no version counter sees it."""
    memory = torch.randint(0, 255, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    storages = storages_only_read((memory,), ())
    before = fingerprints(storages.values())
    assert changed_storages(storages, before) == set()
    version, start = memory._version, memory.data_ptr()
    one, other = start + source % size, start + target % size
    kept = ctypes.string_at(other, count)
    ctypes.memmove(other, ctypes.string_at(one, count), count)
    ctypes.memmove(one, kept, count)
    assert memory._version == version
    assert changed_storages(storages, before) == set(storages)
