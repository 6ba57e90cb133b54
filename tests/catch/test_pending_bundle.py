"""The bundle on disk before the call: always that of the call that is about to happen."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchrepro import Compiler, Place
from torchrepro.bundle.storage_file import StorageRewriter, open_storages, write_storages
from torchrepro.catch.caught import caught_in, read_flight
from torchrepro.catch.pending_bundle import PendingBundle
from torchrepro.catch.session import Session
from torchrepro.catch.settings import WatchSettings
from torchrepro.catch.snapshot import Snapshot


class Sums(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def pending_in(directory: Path) -> PendingBundle:
    graph = torch.fx.symbolic_trace(Sums())
    snapshot = Snapshot.take(graph, Place.AFTER_CAPTURE, Compiler("eager"))
    return PendingBundle(Session(WatchSettings(level=3, out=directory)), snapshot)


def update(pending: PendingBundle, inputs: Sequence[Any]) -> None:
    pending.update(inputs, {"cpu": torch.get_rng_state()}, "run")


def test_the_second_call_is_written_over_the_first(tmp_path: Path) -> None:
    pending = pending_in(tmp_path)
    update(pending, (torch.zeros(3), torch.zeros(3)))
    first = pending.path
    torch.rand(1)
    update(pending, (torch.ones(3), torch.full((3,), 7.0)))
    assert pending.path == first
    repro = pending.load()
    assert torch.equal(repro.inputs[0], torch.ones(3))
    assert torch.equal(repro.inputs[1], torch.full((3,), 7.0))
    assert torch.equal(repro.ambient.rng["cpu"], torch.get_rng_state())


def test_a_tensor_without_bytes_is_written_anew_for_each_call(tmp_path: Path) -> None:
    pending = pending_in(tmp_path)
    for value in (1.0, 2.0):
        update(pending, (torch._efficientzerotensor(3), torch.full((3,), value)))
        assert torch.equal(pending.load().inputs[1], torch.full((3,), value))
        assert pending.load().inputs[0]._is_zerotensor()


TENSORS = st.builds(
    lambda size, dtype, value, transposed, grad: (
        torch.full(size, value, dtype=dtype).t()
        if transposed and len(size) == 2
        else torch.full(size, value, dtype=dtype)
    ).requires_grad_(grad and dtype.is_floating_point),
    st.lists(st.integers(0, 4), max_size=2),
    st.sampled_from([torch.float32, torch.int64, torch.bfloat16]),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(st.tuples(TENSORS | st.integers(0, 3), TENSORS), min_size=1, max_size=5),
    alias=st.booleans(),
)
def test_whatever_the_calls_are_the_last_one_is_on_disk(
    tmp_path: Path, calls: list[Any], alias: bool
) -> None:
    pending = pending_in(tmp_path)
    for x, y in calls:
        inputs = (y, y) if alias and isinstance(x, torch.Tensor) else (x, y)
        update(pending, inputs)
        found = pending.load().inputs
        for mine, kept in zip(inputs, found, strict=True):
            if not isinstance(mine, torch.Tensor):
                assert kept == mine
                continue
            assert torch.equal(kept, mine)
            assert (kept.dtype, kept.stride(), kept.requires_grad) == (
                mine.dtype,
                mine.stride(),
                mine.requires_grad,
            )
        if inputs[0] is inputs[1]:
            assert found[0] is found[1]
    pending.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_call_in_flight_is_in_the_summary_and_an_idle_one_is_not(tmp_path: Path) -> None:
    pending = pending_in(tmp_path)
    update(pending, (torch.zeros(3), torch.zeros(3)))
    assert pending.path is not None
    run_id = pending.path.name.rsplit("-", 2)[0]
    flight = read_flight(pending.path)
    assert flight is not None
    assert flight.phase == "run"
    assert [caught.verdict for caught in caught_in(tmp_path, run_id)] == ["unfinished"]
    pending.idle()
    assert caught_in(tmp_path, run_id) == []


def test_the_users_tensors_are_not_kept_alive(tmp_path: Path) -> None:
    import gc
    import weakref

    pending = pending_in(tmp_path)
    x = torch.zeros(3)
    update(pending, (x, torch.zeros(3)))
    dead = weakref.ref(x)
    del x
    gc.collect()
    assert dead() is None


@given(sizes=st.lists(st.sampled_from([0, 1, 3, 64, 128, 500]), min_size=1, max_size=6), data=st.data())
def test_rewriting_any_of_the_storages_leaves_the_others(sizes: list[int], data: st.DataObject) -> None:
    old = {f"s{number}": torch.zeros(size, dtype=torch.uint8) for number, size in enumerate(sizes)}
    chosen = data.draw(st.lists(st.sampled_from(sorted(old)), unique=True))
    new = {name: torch.randint(1, 255, old[name].shape, dtype=torch.uint8) for name in chosen}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "tensors.safetensors")
        write_storages(path, old)
        rewriter = StorageRewriter(path)
        rewriter.write((name, value.data_ptr(), value.numel()) for name, value in new.items())
        rewriter.close()
        found = open_storages(path)
        assert all(torch.equal(found[name], value) for name, value in {**old, **new}.items())


def test_a_parameter_that_becomes_another_is_written_anew(tmp_path: Path) -> None:
    """The same object, with other data: `module.half()` assigns to `.data`."""
    pending = pending_in(tmp_path)
    x, weight = torch.ones(3), torch.nn.Parameter(torch.ones(3))
    update(pending, (x, weight))
    for changed in (torch.zeros(3), torch.full((5,), 2.0), torch.ones(3, dtype=torch.float16)):
        weight.data = changed
        update(pending, (x, weight))
        assert torch.equal(pending.load().inputs[1], changed)


def test_rewriting_refuses_another_size(tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    write_storages(path, {"a": torch.zeros(8, dtype=torch.uint8), "b": torch.zeros(3, dtype=torch.uint8)})
    rewriter = StorageRewriter(path)
    new = torch.arange(3, dtype=torch.uint8)
    rewriter.write([("b", new.data_ptr(), 3)])
    with pytest.raises(ValueError, match="a has 8 bytes, not 3"):
        rewriter.write([("a", new.data_ptr(), 3)])
    rewriter.close()
    assert torch.equal(open_storages(path)["b"], new)
    assert torch.equal(open_storages(path)["a"], torch.zeros(8, dtype=torch.uint8))
