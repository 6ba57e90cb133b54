"""Strided tensors come back bit for bit, whatever their dtype, strides, flags and sharing."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from value_roundtrip import assert_exactly_the_same, geometry, storage_bytes, through_a_file

from torchrepro.bundle.storage_file import byte_span
from torchrepro.bundle.values import pack_values

QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - QUANTISED, key=str
)

pytestmark = pytest.mark.filterwarnings("ignore")


class _History(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, make: Any) -> torch.Tensor:
        return make()


def as_non_leaf(make: Any) -> torch.Tensor:
    return _History.apply(torch.zeros((), requires_grad=True), make)


@st.composite
def tensors_over_shared_storages(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """A few storages, several views of any dtype over each, some tensors under two names."""
    values: dict[str, torch.Tensor] = {}
    for index in range(draw(st.integers(1, 3))):
        nbytes = draw(st.integers(0, 200))
        noise = random.Random(draw(st.integers(0, 1000)))
        storage = torch.tensor(list(noise.randbytes(nbytes)), dtype=torch.uint8).untyped_storage()
        for view in range(draw(st.integers(1, 3))):
            values[f"t{index}_{view}"] = draw(views(storage))
        if draw(st.booleans()):
            values[f"again{index}"] = values[f"t{index}_0"]
    return values


@st.composite
def views(draw: st.DrawFn, storage: torch.UntypedStorage) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.lists(st.integers(0, 3), max_size=3))
    stride = [draw(st.integers(0, 4)) for _ in size]
    room = storage.nbytes() // dtype.itemsize
    while size and byte_span(size, stride, 0, dtype)[1] > storage.nbytes():
        size, stride = size[1:], stride[1:]
    if byte_span(size, stride, 0, dtype)[1] > storage.nbytes():
        size, stride = [0], [1]
    slack = room - byte_span(size, stride, 0, dtype)[1] // dtype.itemsize
    offset = draw(st.integers(0, max(slack, 0)))
    conj = dtype.is_complex and draw(st.booleans())
    neg = (dtype.is_complex or dtype in (torch.float32, torch.float64)) and draw(st.booleans())

    def make() -> torch.Tensor:
        tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
        torch._C._set_conj(tensor, conj)
        torch._C._set_neg(tensor, neg)
        return tensor

    differentiable = dtype.is_floating_point or dtype.is_complex
    form = draw(st.sampled_from(["plain", "leaf", "non_leaf", "parameter", "inference"]))
    if form == "inference":
        with torch.inference_mode():
            return make()
    if form == "plain" or not differentiable:
        return make()
    if form == "parameter":
        return torch.nn.Parameter(make(), requires_grad=draw(st.booleans()))
    return make().requires_grad_() if form == "leaf" else as_non_leaf(make)


@settings(max_examples=150, deadline=None)
@given(tensors_over_shared_storages())
def test_any_set_of_tensors_comes_back_bit_for_bit(values: dict[str, torch.Tensor]) -> None:
    assert_exactly_the_same(through_a_file(values), values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_torch_is_kept(dtype: torch.dtype) -> None:
    raw = torch.arange(7 * dtype.itemsize, dtype=torch.uint8)
    assert_exactly_the_same(through_a_file({"x": raw.view(dtype)}), {"x": raw.view(dtype)})


def test_two_storages_over_one_buffer_share_memory_again() -> None:
    import numpy

    buffer = numpy.arange(5.0)
    loaded = through_a_file({"a": torch.from_numpy(buffer), "b": torch.from_numpy(buffer)})
    loaded["a"].fill_(7)
    assert loaded["b"].tolist() == [7.0] * 5


def test_a_small_view_of_a_huge_storage_keeps_only_its_part_and_says_so() -> None:
    base = torch.arange(1 << 20, dtype=torch.float32)
    values = {"x": base[500_000:500_100].view(10, 10), "y": base[500_050:500_150]}
    packed = pack_values(values)
    assert sum(stored.numel() for stored in packed.storages.values()) < 1024
    assert "x, y" in packed.notes[0]
    assert "4.0 MiB" in packed.notes[0]
    loaded = through_a_file(values)
    assert loaded["x"].equal(values["x"])
    assert loaded["y"].equal(values["y"])
    loaded["x"].fill_(0)
    assert loaded["y"][:50].eq(0).all()
    assert loaded["y"][50:].equal(values["y"][50:])


def test_a_view_that_covers_most_of_its_storage_keeps_all_of_it() -> None:
    values = {"x": torch.arange(1 << 20, dtype=torch.float32)[: 3 << 18]}
    assert_exactly_the_same(through_a_file(values), values)


def test_an_empty_view_below_the_part_in_use_comes_back() -> None:
    base = torch.arange(1 << 20, dtype=torch.float32)
    loaded = through_a_file({"x": base[900_000:900_010], "none": base[5:5]})
    assert loaded["none"].shape == (0,)
    assert loaded["x"].equal(base[900_000:900_010])


def test_a_storage_freed_under_its_tensor_comes_back_freed() -> None:
    freed = torch.ones(10, 10)
    values = {"x": freed, "view": freed.t()}
    freed.untyped_storage().resize_(0)
    loaded = through_a_file(values)
    assert [geometry(item) for item in loaded.values()] == [geometry(item) for item in values.values()]
    loaded["x"].untyped_storage().resize_(400)


def test_a_non_leaf_can_be_changed_in_place_after_loading() -> None:
    source = torch.randn(4, requires_grad=True)
    loaded = through_a_file({"x": source * 2})["x"]
    loaded.mul_(3).sum().backward()
    assert not loaded.is_leaf


def test_meta_tensors_keep_metadata_and_sharing() -> None:
    base = torch.empty(4, 5, device="meta", dtype=torch.bfloat16)
    values = {"x": base.t(), "y": base[1:], "other": torch.empty(3, device="meta")}
    loaded = through_a_file(values)
    assert [geometry(item) for item in loaded.values()] == [geometry(item) for item in values.values()]
    storages = [item.untyped_storage()._cdata for item in loaded.values()]
    assert storages[0] == storages[1] != storages[2]


def test_packing_copies_nothing_and_changes_nothing() -> None:
    tensor = torch.randn(1000, requires_grad=True)
    before = storage_bytes(tensor)
    packed = pack_values({"x": tensor})
    assert packed.storages["x"].data_ptr() == tensor.data_ptr()
    assert storage_bytes(tensor) == before
    assert tensor.requires_grad


def test_packing_works_inside_the_modes_that_a_compiler_has_on() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.randn(3)
    with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
        loaded = through_a_file({"x": tensor})["x"]
    assert_exactly_the_same({"x": loaded}, {"x": tensor})


def test_a_device_that_is_missing_here_becomes_the_cpu_and_is_named() -> None:
    import msgspec

    from torchrepro.bundle.values import device_notes, unpack_values

    packed = pack_values({"x": torch.ones(3)})
    entry = packed.entries["x"]
    elsewhere = msgspec.structs.replace(entry, storage=msgspec.structs.replace(entry.storage, device="xpu:3"))
    if torch.xpu.is_available():
        pytest.skip("this machine has an xpu")
    assert device_notes({"x": elsewhere}) == ("values of xpu:3 are loaded on cpu",)
    loaded = unpack_values({"x": elsewhere}, lambda name: packed.storages[name].clone())
    assert loaded["x"].device.type == "cpu"
    on_meta = unpack_values(
        {"x": elsewhere}, packed.storages.__getitem__, device_map=lambda _: torch.device("meta")
    )
    assert on_meta["x"].is_meta
