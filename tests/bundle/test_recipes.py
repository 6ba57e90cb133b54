"""Above the size cap: integers stay exact, floating values come back as similar ones, and people are told."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from value_roundtrip import loaded_again, storage_bytes, through_a_file

from torchrepro.bundle.recipes import follow, unknown_data
from torchrepro.bundle.storage_entries import Constant, Narrowed, Progression, RandomFloats
from torchrepro.bundle.values import pack_values, unpack_values
from torchrepro.nouns.errors import BundleError

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def recipe_of(tensor: torch.Tensor) -> Any:
    return pack_values({"x": tensor}, size_cap=0).entries["x"].storage.recipe


shapes = {
    "normal": lambda: torch.randn(50_000, generator=seeded()) * 3 + 1,
    "uniform": lambda: torch.rand(50_000, generator=seeded()) * 10 - 2,
    "after relu": lambda: torch.randn(50_000, generator=seeded()).relu(),
    "softmax": lambda: torch.randn(500, 100, generator=seeded()).softmax(-1).flatten(),
    "lognormal": lambda: torch.randn(50_000, generator=seeded()).exp(),
    "two humps": lambda: torch.cat([torch.randn(25_000, generator=seeded(i)) + 8 * i for i in (0, 1)]),
    "weights": lambda: torch.randn(50_000, generator=seeded()) * 0.02,
}


@pytest.mark.parametrize("name", shapes)
def test_moments_range_and_zeros_are_preserved(name: str) -> None:
    tensor = shapes[name]()
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert not loaded.equal(tensor)
    spread = tensor.std()
    assert abs(loaded.mean() - tensor.mean()) < 0.03 * spread
    assert abs(loaded.std() - spread) < 0.05 * spread
    assert (loaded.min(), loaded.max()) == (tensor.min(), tensor.max())
    assert abs((loaded == 0).double().mean() - (tensor == 0).double().mean()) < 0.02


@settings(max_examples=60, deadline=None)
@example(dtype=torch.float8_e4m3fn, scale=0.125, shift=5.0, zeros=0.0, seed=1)
@example(dtype=torch.float8_e4m3fn, scale=0.0625, shift=5.0, zeros=0.0, seed=0)
@example(dtype=torch.float8_e4m3fn, scale=0.0546875, shift=5.0, zeros=0.0, seed=0)
@example(dtype=torch.float8_e5m2, scale=0.05, shift=0.1, zeros=0.5, seed=1)
@given(
    dtype=st.sampled_from(FLOATS),
    scale=st.floats(0.05, 20),
    shift=st.floats(-5, 5),
    zeros=st.floats(0, 0.9),
    seed=st.integers(0, 100),
)
def test_any_scale_shift_and_sparsity_is_preserved(
    dtype: torch.dtype, scale: float, shift: float, zeros: float, seed: int
) -> None:
    tensor = torch.randn(20_000, generator=seeded(seed), dtype=torch.float64) * scale + shift
    tensor = (tensor * (torch.rand(20_000, generator=seeded(seed + 1)) > zeros)).to(dtype)
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert loaded.dtype is dtype
    wanted, got = tensor.double(), loaded.double()
    # In fp8 a narrow spread around 5 is one value and a few strays: then the spacing is the yardstick.
    slack = 0.05 * torch.finfo(dtype).eps * wanted.abs().max()
    assert abs(got.mean() - wanted.mean()) <= 0.05 * wanted.std() + slack
    assert abs(got.std() - wanted.std()) <= 0.06 * wanted.std() + slack
    assert (got.min(), got.max()) == (wanted.min(), wanted.max())


def test_one_huge_outlier_is_kept_and_spoils_nothing() -> None:
    tensor = torch.randn(100_000, generator=seeded())
    tensor[777] = 1e6
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert loaded[777] == 1e6
    rest = torch.cat([loaded[:777], loaded[778:]])
    assert 0.9 < rest.std() < 1.1


def test_special_values_keep_their_number_and_first_place() -> None:
    tensor = torch.randn(10_000, generator=seeded())
    tensor[123::100] = float("nan")
    tensor[55] = float("inf")
    tensor[66] = float("-inf")
    recipe = recipe_of(tensor)
    assert (recipe.nans, recipe.infinities, recipe.negative_infinities) == (99, 1, 1)
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert loaded[123].isnan()
    assert (loaded[55], loaded[66]) == (float("inf"), float("-inf"))
    assert 50 < loaded.isnan().sum() < 200
    assert "not finite" in " ".join(pack_values({"x": tensor}, size_cap=0).notes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 3.5])
def test_a_tensor_of_one_value_is_exact(value: float) -> None:
    tensor = torch.full((5000,), value)
    packed = pack_values({"x": tensor}, size_cap=0)
    assert isinstance(packed.entries["x"].storage.recipe, Constant)
    assert not packed.notes
    assert not packed.storages
    assert storage_bytes(loaded_again(packed)["x"]) == storage_bytes(tensor)


def test_values_near_the_end_of_the_range_stay_json() -> None:
    tensor = torch.tensor([1.7e308, -1.7e308, 1e308], dtype=torch.float64).repeat(100)
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert loaded.isfinite().all()
    assert (loaded.max(), loaded.min()) == (1.7e308, -1.7e308)


def test_complex_values_are_drawn_by_component() -> None:
    tensor = torch.randn(20_000, dtype=torch.complex64, generator=seeded()) * 2
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert loaded.dtype is torch.complex64
    assert abs(torch.view_as_real(loaded).std() - torch.view_as_real(tensor).std()) < 0.05


INTEGERS = [
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.uint16,
    torch.uint64,
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(INTEGERS), st.integers(-(1 << 62), 1 << 62), st.integers(1, 1 << 40), st.integers(1, 400)
)
def test_integers_and_booleans_are_exact_at_any_size(
    dtype: torch.dtype, low: int, width: int, count: int
) -> None:
    wide = torch.randint(low, low + width, (count,), generator=seeded())
    tensor = wide.to(dtype)
    loaded = through_a_file({"x": tensor}, size_cap=0)["x"]
    assert storage_bytes(loaded) == storage_bytes(tensor)


@pytest.mark.parametrize(
    ("tensor", "recipe", "stored"),
    [
        (torch.arange(5, 50_005, 3), Progression, 0),
        (torch.arange(50_000, 0, -1, dtype=torch.int32), Progression, 0),
        (torch.randint(0, 50_000, (8000,), generator=seeded()), Narrowed, 16_000),
        (torch.randint(-100, 100, (8000,), generator=seeded()), Narrowed, 8000),
        (torch.rand(8000, generator=seeded()) > 0.5, Narrowed, 1000),
        (torch.tensor([-(1 << 63), (1 << 63) - 1]).repeat(100), type(None), 1600),
    ],
    ids=["arange", "descending", "token ids", "small range", "mask", "extremes"],
)
def test_integers_take_the_shortest_exact_form(tensor: torch.Tensor, recipe: type, stored: int) -> None:
    packed = pack_values({"x": tensor}, size_cap=0)
    assert isinstance(packed.entries["x"].storage.recipe, recipe)
    assert sum(item.numel() for item in packed.storages.values()) == stored
    assert storage_bytes(loaded_again(packed)["x"]) == storage_bytes(tensor)


def test_the_largest_go_first_and_the_rest_is_exact() -> None:
    values = {
        name: torch.randn(size, generator=seeded()) for name, size in (("s", 10), ("l", 5000), ("m", 1000))
    }
    packed = pack_values(values, size_cap=5000)
    assert isinstance(packed.entries["l"].storage.recipe, RandomFloats)
    loaded = loaded_again(packed)
    assert loaded["s"].equal(values["s"])
    assert loaded["m"].equal(values["m"])
    assert len(packed.notes) == 1
    assert packed.notes[0].startswith(
        "l: 19.5 KiB of torch.float32 above the cap of 4.9 KiB, replaced on loading"
    )


def test_views_of_a_generated_storage_still_share_it() -> None:
    base = torch.randn(4000, generator=seeded())
    loaded = through_a_file({"a": base, "b": base[10:20]}, size_cap=0)
    assert loaded["a"][10:20].equal(loaded["b"])
    loaded["a"].fill_(1)
    assert loaded["b"].eq(1).all()


def test_memory_seen_as_two_dtypes_is_kept_exactly_with_a_note() -> None:
    base = torch.randn(4000, generator=seeded())
    packed = pack_values({"a": base, "bits": base.view(torch.int32)}, size_cap=0)
    assert "several dtypes" in packed.notes[0]
    assert loaded_again(packed)["a"].equal(base)


def test_packed_float4_is_kept_exactly() -> None:
    tensor = torch.randint(0, 255, (4000,), dtype=torch.uint8, generator=seeded()).view(
        torch.float4_e2m1fn_x2
    )
    assert storage_bytes(through_a_file({"x": tensor}, size_cap=0)["x"]) == storage_bytes(tensor)


def test_generation_is_the_same_on_every_machine() -> None:
    """The digests were made once; a machine, NumPy or torch that gives others breaks every shared recipe."""
    table = {"levels": [0.001, 0.25, 0.5, 0.75, 0.999], "quantiles": [-3.1, -0.7, 0.1, 0.7, 3.1]}
    floats = [
        msgspec.structs.replace(unknown_data(d, seed=7), **table) for d in (torch.float32, torch.bfloat16)
    ]
    digests = []
    for recipe in (*floats, unknown_data(torch.int64, seed=7)):
        drawn = follow(recipe, 4096, lambda: torch.empty(0))
        digests.append(hashlib.sha256(drawn.numpy().tobytes()).hexdigest()[:16])
    assert digests == ["9ccca4630f234a69", "8f0010f8515f24dc", "147e8b2ee4653f3c"]


@pytest.mark.parametrize(
    "recipe",
    [
        Constant(b""),
        Constant(b"abc"),
        Progression(3, 0, 1),
        Narrowed(8, 16, 0),
        msgspec.structs.replace(unknown_data(torch.float32, 0), levels=[0.0]),
        msgspec.structs.replace(unknown_data(torch.float32, 0), dtype="save"),
        msgspec.structs.replace(unknown_data(torch.float32, 0), planted=[(10**9, b"\0" * 4)]),
        msgspec.structs.replace(unknown_data(torch.int8, 0), high=-1),
    ],
    ids=lambda recipe: type(recipe).__name__,
)
def test_a_recipe_that_does_not_fit_is_one_clear_line(recipe: Any) -> None:
    packed = pack_values({"x": torch.randn(4)})
    storage = msgspec.structs.replace(packed.entries["x"].storage, recipe=recipe)
    entry = msgspec.structs.replace(packed.entries["x"], storage=storage)
    with pytest.raises(BundleError, match="does not fit its storage"):
        unpack_values({"x": entry}, lambda name: torch.empty(3, dtype=torch.uint8))
