"""Tensor subclasses, distributed tensors and process groups survive a bundle, in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.process_groups import current_groups
from torchrepro.bundle.read import read_manifest
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import save_bundle
from torchrepro.torch_api.distributed import start_fake_groups


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a class of quantised weights keeps next to its tensors."""

    block: int
    name: str = "plain"


class Quantised(torch.Tensor):
    """Weights as integers and a scale, as libraries of quantisation have them."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, layout: Layout) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, layout: Layout) -> None:
        self.codes, self.scale, self.layout_ = codes, scale, layout

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], (self.layout_, None)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Quantised:
        return Quantised(inner["codes"], inner["scale"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(value: Any) -> Any:
            return value.codes.float() * value.scale if isinstance(value, Quantised) else value

        return func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


class Counting(torch.Tensor):
    """Changes nothing but what functions return."""


def local_class() -> type[torch.Tensor]:
    class Local(torch.Tensor):
        pass

    return Local


def of(function: Any, *inputs: Any, **rest: Any) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), inputs, **rest)


def through_a_bundle(repro: Repro, tmp_path: Path) -> Repro:
    return load_bundle(save_bundle(repro, tmp_path / "b"), trusted=("source", __name__))


@pytest.fixture
def two_ranks() -> Iterator[None]:
    start_fake_groups(1, 4, {"0": (0, 1, 2, 3), "pairs": (1, 3), "halves": (0, 1)})
    yield
    dist.destroy_process_group()


def test_a_wrapper_of_the_user_comes_back_with_its_class_and_context(tmp_path: Path) -> None:
    weight = Quantised(torch.tensor([[1, -2]], dtype=torch.int8), torch.tensor(0.5), Layout(32))
    (found,) = through_a_bundle(of(lambda x: x.relu(), weight), tmp_path).inputs
    assert type(found).__name__ == "Quantised"
    assert (found.layout_.block, found.layout_.name) == (32, "plain")
    assert found.codes.tolist() == [[1, -2]]
    assert (found + 0).tolist() == [[0.5, -1.0]]


def test_a_wrapper_of_a_stranger_is_refused_before_anything_of_it_runs(tmp_path: Path) -> None:
    weight = Quantised(torch.ones(2, dtype=torch.int8), torch.tensor(0.5), Layout(32))
    bundle = save_bundle(of(lambda x: x.relu(), weight), tmp_path / "b")
    assert "source.Layout" not in read_manifest(bundle).notes
    with pytest.raises(TorchReproError, match="--trust"):
        load_bundle(bundle)


@pytest.mark.parametrize("kind", [Counting, local_class()])
def test_a_class_with_its_own_functions_comes_back(kind: type[torch.Tensor], tmp_path: Path) -> None:
    value = torch.randn(3).as_subclass(kind)
    value.hue = "red"  # type: ignore[attr-defined]
    (found,) = through_a_bundle(of(lambda x: x.relu(), value), tmp_path).inputs
    assert type(found).__name__ == kind.__name__
    assert found.hue == "red"
    assert torch.equal(found.as_subclass(torch.Tensor), value.as_subclass(torch.Tensor))


@pytest.mark.usefixtures("two_ranks")
def test_a_distributed_tensor_comes_back_in_one_process(tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from torchrepro.torch_api.distributed import make_mesh

    mesh = make_mesh("cpu", torch.tensor([[0, 1], [2, 3]]), ("a", "b"), ("pairs", "halves"))
    value = DTensor.from_local(torch.randn(2, 3), mesh, [Shard(0), Replicate()], run_check=False)
    bundle = save_bundle(of(lambda x: x.relu(), value.requires_grad_()), tmp_path / "b")
    groups = current_groups()
    dist.destroy_process_group()
    (found,) = load_bundle(bundle).inputs
    assert current_groups() == groups
    assert isinstance(found, DTensor)
    assert found.shape == (4, 3)
    assert found.placements == value.placements
    assert found.device_mesh.mesh_dim_names == ("a", "b")
    assert found.requires_grad
    assert torch.equal(found.to_local(), value.to_local())


@pytest.mark.usefixtures("two_ranks")
def test_meshes_groups_and_placements_in_a_graph_come_back(tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, init_device_mesh

    mesh = init_device_mesh("cpu", (4,))

    def f(x: torch.Tensor, mesh: Any) -> Any:
        shared = DTensor.from_local(x, mesh, [Partial("sum")])
        return shared.redistribute(mesh, [Replicate()]).to_local()

    graph = torch.fx.Graph()
    x, m = graph.placeholder("x"), graph.placeholder("m")
    shared = graph.call_function(DTensor.from_local, (x, m, [Partial("sum")]))
    whole = graph.call_method("redistribute", (shared, m, [Replicate()]))
    graph.output(graph.call_method("to_local", (whole,)))
    repro = Repro(torch.fx.GraphModule({}, graph), (torch.ones(2), mesh))
    found = through_a_bundle(repro, tmp_path)
    assert found.inputs[1].size() == 4
    assert torch.equal(found.graph(*found.inputs), f(torch.ones(2), mesh))


def test_impossible_groups_of_a_stranger_are_refused(tmp_path: Path) -> None:
    start_fake_groups(0, 2, {"0": (0, 1)})
    try:
        bundle = save_bundle(
            of(lambda x: torch.ops._c10d_functional.wait_tensor(x), torch.ones(2)), tmp_path / "b"
        )
    finally:
        dist.destroy_process_group()
    text = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(text.replace('"size": 2', '"size": 200000000'))
    with pytest.raises(TorchReproError):
        load_bundle(bundle)
    assert not dist.is_initialized()
