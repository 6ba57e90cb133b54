"""The other kinds of tensors, Python values, and what cannot be kept."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from value_roundtrip import geometry, loaded_again, storage_bytes, through_a_file

from torchrepro.bundle.manifest import (
    DeviceEntry,
    DictEntry,
    FloatEntry,
    IntEntry,
    NoneEntry,
    SameEntry,
    SequenceEntry,
    TorchConstantEntry,
    ValueEntry,
)
from torchrepro.bundle.values import pack_values, unpack_values
from torchrepro.nouns.errors import BundleError, CannotSerialise

pytestmark = pytest.mark.filterwarnings("ignore")


def once(value: Any) -> Any:
    return through_a_file({"x": value})["x"]


def per_channel(dtype: torch.dtype, zero_points: torch.Tensor) -> torch.Tensor:
    scales = torch.tensor([0.1, 0.25, 0.3])
    return torch.quantize_per_channel(torch.randn(3, 5), scales, zero_points, 0, dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint8),
        lambda: torch.quantize_per_tensor(torch.randn(3, 4), 1 / 3, 7, torch.quint8).t(),
        lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.01, 0, torch.qint32)[1:],
        lambda: per_channel(torch.qint8, torch.tensor([0, 1, 2])),
        lambda: per_channel(torch.quint8, torch.tensor([0.5, 1.0, 2.0])),
        lambda: per_channel(torch.quint4x2, torch.tensor([0.0, 1.0, 2.0])),
    ],
    ids=["qint8", "quint8 transposed", "qint32 slice", "per channel", "float zero points", "packed quint4"],
)
def test_quantised_tensors_keep_integers_and_quantizer(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    loaded = once(tensor)
    assert geometry(loaded) == geometry(tensor)
    assert storage_bytes(loaded) == storage_bytes(tensor)
    assert loaded.qscheme() == tensor.qscheme()
    assert loaded.dequantize().equal(tensor.dequantize())


def test_a_quantised_dtype_without_quantizer_is_kept() -> None:
    tensor = torch.empty(3, dtype=torch.qint8)
    assert storage_bytes(once(tensor)) == storage_bytes(tensor)


@pytest.mark.parametrize("coalesced", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_coo_tensors_keep_order_duplicates_and_flag(coalesced: bool, requires_grad: bool) -> None:
    indices = torch.tensor([[0, 1, 2]]) if coalesced else torch.tensor([[2, 0, 2]])
    tensor = torch.sparse_coo_tensor(indices, torch.randn(3, 2), (3, 2), is_coalesced=coalesced)
    tensor.requires_grad_(requires_grad)
    loaded = once(tensor)
    assert loaded._indices().equal(indices)
    assert loaded._values().equal(tensor._values())
    assert loaded.size() == tensor.size()
    assert (loaded.is_coalesced(), loaded.requires_grad) == (coalesced, requires_grad)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_compressed_sparse_tensors_are_kept(layout: torch.layout) -> None:
    blocks = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    tensor = torch.eye(4, 6).to_sparse(layout=layout, blocksize=blocks)
    loaded = once(tensor)
    assert loaded.layout is layout
    assert loaded.to_dense().equal(tensor.to_dense())
    assert loaded.values().equal(tensor.values())


def test_the_values_of_a_sparse_tensor_still_share_memory_with_another_value() -> None:
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), values, (2,))
    loaded = through_a_file({"sparse": sparse, "values": values})
    loaded["values"].fill_(5)
    assert loaded["sparse"].to_dense().tolist() == [5.0, 5.0]


def test_jagged_tensors_that_share_offsets_still_do() -> None:
    first = torch.nested.nested_tensor(
        [torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, requires_grad=True
    )
    loaded = through_a_file({"a": first, "b": first * 2})
    total = loaded["a"] + loaded["b"]
    assert total.values().equal((first * 3).values())
    assert loaded["a"].is_leaf
    assert not loaded["b"].is_leaf


def test_transposed_and_padded_jagged_tensors_are_kept() -> None:
    jagged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    assert [each.shape for each in once(jagged.transpose(1, 2)).unbind()] == [(3, 2), (3, 4)]
    narrowed = torch.nested.narrow(
        torch.arange(12.0).view(2, 6), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged
    )
    assert [each.tolist() for each in once(narrowed).unbind()] == [
        each.tolist() for each in narrowed.unbind()
    ]


def test_strided_nested_tensors_are_kept() -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    loaded = once(nested)
    assert all(a.equal(b) for a, b in zip(loaded.unbind(), nested.unbind(), strict=True))


def test_mkldnn_tensors_are_kept_through_their_dense_copy() -> None:
    tensor = torch.randn(3, 4)
    loaded = once(tensor.to_mkldnn())
    assert loaded.is_mkldnn
    assert loaded.to_dense().equal(tensor)


def test_zero_tensors_have_no_memory_again() -> None:
    loaded = once(torch._efficientzerotensor((2, 3), dtype=torch.float64).t())
    assert loaded._is_zerotensor()
    assert (loaded.dtype, loaded.shape, loaded.stride()) == (torch.float64, (3, 2), (1, 3))


def test_a_subclass_of_torch_itself_is_taken_apart_and_built_again() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    shared = torch.randn(3)
    values = {"x": TwoTensor(shared, torch.ones(3)), "shared": shared}
    values["parameter"] = torch.nn.Parameter(TwoTensor(torch.zeros(2), torch.zeros(2)))
    loaded = through_a_file(values)
    assert type(loaded["x"]) is TwoTensor
    assert loaded["x"].a is loaded["shared"]
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    assert type(loaded["parameter"]) is TwoTensor


class Foreign(torch.Tensor):
    pass


class Named(NamedTuple):
    x: int


@pytest.mark.parametrize(
    "value",
    [torch.ones(2).as_subclass(Foreign), object(), Named(1), len, [{"deep": object()}]],
    ids=["tensor subclass", "object", "named tuple", "function", "nested"],
)
def test_what_cannot_be_kept_is_noted_and_named_on_loading(value: Any) -> None:
    packed = pack_values({"good": 1, "bad": value})
    assert packed.notes
    assert "bad" in packed.notes[0]
    with pytest.raises(CannotSerialise, match=r"^bad holds a .* could not keep"):
        loaded_again(packed)


def test_a_list_that_contains_itself_is_refused_rather_than_followed_for_ever() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert any("contains itself" in note for note in pack_values({"x": loop}).notes)


def test_a_manifest_cannot_name_a_class_outside_torch() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    packed = pack_values({"x": TwoTensor(torch.ones(2), torch.ones(2))})
    for name in ("os.path.join", "torchrepro.nouns.errors.BundleError", "torch.nn.Linear", "torch.Tensor"):
        entry = msgspec.structs.replace(packed.entries["x"], type=name)
        with pytest.raises(BundleError, match="does not have"):
            unpack_values({"x": entry}, packed.storages.__getitem__)


def test_fake_tensors_give_their_metadata_and_sharing_and_a_note() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.randn(5, 7))
    with mode:
        values = {"x": fake, "view": fake.t(), "ids": torch.zeros(8, dtype=torch.int64), "n": fake.size(0)}
    packed = pack_values(values)
    assert any("no data existed" in note and "x, view" in note for note in packed.notes)
    assert any("symbolic number" in note for note in packed.notes)
    loaded = loaded_again(packed)
    assert (loaded["x"].shape, loaded["view"].shape, loaded["n"]) == ((5, 7), (7, 5), 5)
    assert type(loaded["x"]) is torch.Tensor
    assert loaded["x"].data_ptr() == loaded["view"].data_ptr()
    assert set(loaded["ids"].tolist()) == {0, 1}


def test_generators_continue_where_they_were() -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    loaded = once(generator)
    assert torch.rand(3, generator=loaded).equal(torch.rand(3, generator=generator))


def test_gradients_and_hooks_are_left_out_with_a_note() -> None:
    tensor = torch.ones(2, requires_grad=True)
    tensor.sum().backward()
    tensor.register_hook(lambda gradient: gradient)
    notes = pack_values({"x": tensor}).notes
    assert set(notes) == {
        "the .grad of x is not kept",
        "the gradient hook of x is not kept",
    }


def test_views_that_share_a_gradient_history_are_noted() -> None:
    base = torch.ones(4, requires_grad=True) * 2
    assert pack_values({"x": base, "y": base[1:]}).notes == (
        "x, y share memory and may share a gradient history; only the memory is kept",
    )
    assert (
        pack_values({"x": torch.ones(2, requires_grad=True), "y": torch.ones(2, requires_grad=True)}).notes
        == ()
    )


def test_marked_dimensions_are_marked_again() -> None:
    tensor = torch.randn(4, 6)
    torch._dynamo.mark_dynamic(tensor, 0, min=2, max=64)
    torch._dynamo.mark_static(tensor, 1)
    loaded = once(tensor)
    assert loaded._dynamo_dynamic_indices == {0}
    assert [(item.dim, item.min, item.max) for item in loaded._dynamo_dynamic_range] == [(0, 2, 64)]
    assert loaded._dynamo_static_indices == {1}


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 80), 1 << 80),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
    st.sampled_from([torch.float8_e4m3fn, torch.device("cuda", 1), torch.sparse_csr, torch.channels_last]),
    st.just(torch.Size([2, 0])),
    st.just(...),
    st.just(slice(1, None, 2)),
    st.just(range(3, 9, 2)),
)
nested = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def bits(value: Any) -> Any:
    """Equal exactly for values with the same types and the same bits, NaN and -0.0 included."""
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    if isinstance(value, complex):
        return "complex", bits(value.real), bits(value.imag)
    if isinstance(value, list | tuple):
        return type(value), [bits(item) for item in value]
    if isinstance(value, dict):
        return dict, [(bits(key), bits(item)) for key, item in value.items()]
    return type(value), value


@settings(max_examples=200, deadline=None)
@given(nested)
def test_python_values_come_back_exactly(value: Any) -> None:
    packed = pack_values({"x": value})
    entries = msgspec.json.decode(msgspec.json.encode(packed.entries), type=dict[str, ValueEntry])
    assert not packed.notes
    assert bits(unpack_values(entries, {}.__getitem__)["x"]) == bits(value)


def test_the_payload_of_a_nan_survives() -> None:
    (odd,) = struct.unpack(">d", bytes.fromhex("fff8000000000123"))
    assert bits(once(odd)) == bits(odd)
    assert math.isnan(once(odd))


def test_one_list_under_two_names_stays_one_list() -> None:
    shared = [1, torch.ones(2)]
    loaded = through_a_file({"a": shared, "b": (shared,)})
    assert loaded["a"] is loaded["b"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"size": (100,), "stride": (1,)},
        {"offset": 10**15},
        {"offset": -1},
        {"stride": (-1,)},
        {"size": (2, 2)},
        {"dtype": "float31"},
        {"dtype": "load"},
        {"conj": True, "size": (10**18,), "stride": (0,)},
    ],
    ids=str,
)
def test_a_manifest_that_lies_about_a_tensor_is_one_clear_line(change: dict[str, Any]) -> None:
    packed = pack_values({"x": torch.ones(4)})
    entry = msgspec.structs.replace(packed.entries["x"], **change)
    with pytest.raises(BundleError) as caught:
        unpack_values({"x": entry}, lambda name: packed.storages[name].clone())
    assert "\n" not in str(caught.value)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (DictEntry(0, ((SequenceEntry("list", ()), NoneEntry()),)), "x holds an impossible dict"),
        (SequenceEntry("set", (SequenceEntry("list", ()),)), "x holds an impossible set"),
        (SequenceEntry("range", (NoneEntry(),)), "x holds an impossible range"),
        (SameEntry(5), "x is the same as a value that is missing"),
        (FloatEntry("nan:12"), "'nan:12' is no NaN"),
        (IntEntry("zz"), "a value that is none"),
        (DeviceEntry("nowhere:1"), "'nowhere:1' is no device that torch knows"),
        (TorchConstantEntry("save"), "torch.save, which torch .* does not have"),
    ],
)
def test_a_manifest_with_an_impossible_value_is_one_clear_line(entry: Any, reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        unpack_values({"x": entry}, {}.__getitem__)


def test_views_stay_views_of_one_tensor_for_autograd() -> None:
    base, other = torch.arange(8.0), torch.arange(8.0)
    loaded = through_a_file({"x": base[:4], "y": base[2:6], "part": other[1:], "whole": other})
    x, y = loaded["x"], loaded["y"]
    assert x._base is y._base
    assert x._base.shape == (8,)
    assert y.tolist() == [2, 3, 4, 5]
    # Torch refuses views of a tensor other than the one that it is given.
    assert [loaded[name]._base for name in ("part", "whole")] == [None, None]
