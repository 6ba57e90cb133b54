"""Tensors on a GPU come back on the GPU with their sharing, and on the CPU where there is none."""

from __future__ import annotations

import pytest
import torch
from value_roundtrip import geometry, loaded_again, sharing, through_a_file

from torchrepro.bundle.values import pack_values

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_cuda_tensors_keep_device_geometry_and_sharing() -> None:
    base = torch.randn(64, 64, device="cuda")
    values = {
        "base": base,
        "view": base.t()[3:],
        "again": base,
        "half": torch.randn(7, device="cuda").to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.randn(3, device="cuda")),
        "non_leaf": torch.ones(3, device="cuda", requires_grad=True) * 2,
        "cpu": torch.ones(3),
    }
    loaded = through_a_file(values)
    assert [geometry(each) for each in loaded.values()] == [geometry(each) for each in values.values()]
    assert sharing(list(loaded.values())) == sharing(list(values.values()))
    for name, tensor in values.items():
        assert loaded[name].float().equal(tensor.float())


def test_a_cuda_generator_continues_where_it_was() -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    torch.rand(5, generator=generator, device="cuda")
    loaded = through_a_file({"g": generator})["g"]
    assert torch.rand(5, generator=loaded, device="cuda").equal(
        torch.rand(5, generator=generator, device="cuda")
    )


def test_recipes_and_exact_forms_work_for_cuda_storages() -> None:
    values = {"x": torch.randn(50_000, device="cuda"), "ids": torch.randint(0, 9, (5000,), device="cuda")}
    loaded = loaded_again(pack_values(values, size_cap=0))
    assert loaded["ids"].equal(values["ids"])
    assert loaded["x"].is_cuda
    assert abs(loaded["x"].std() - 1) < 0.05


def test_sparse_and_jagged_cuda_tensors_are_kept() -> None:
    jagged = torch.nested.nested_tensor(
        [torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, device="cuda"
    )
    eye = torch.eye(3, device="cuda")
    loaded = through_a_file({"coo": eye.to_sparse(), "csr": eye.to_sparse_csr(), "jagged": jagged})
    assert loaded["coo"].to_dense().equal(eye)
    assert loaded["csr"].to_dense().equal(eye)
    assert loaded["jagged"].values().equal(jagged.values())
    assert loaded["jagged"].is_cuda
