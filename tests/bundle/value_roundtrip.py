"""What the tests of packed values share: one trip through JSON and a real file, and an exact comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.bundle.manifest import ValueEntry
from torchrepro.bundle.storage_file import open_storages, write_storages
from torchrepro.bundle.values import PackedValues, pack_values, unpack_values


def through_a_file(values: dict[str, Any], **options: Any) -> dict[str, Any]:
    return loaded_again(pack_values(values, **options))


def loaded_again(packed: PackedValues) -> dict[str, Any]:
    entries = msgspec.json.decode(msgspec.json.encode(packed.entries), type=dict[str, ValueEntry])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tensors.safetensors")
        write_storages(path, packed.storages)
        return unpack_values(entries, open_storages(path).__getitem__)


def storage_bytes(tensor: torch.Tensor) -> bytes:
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
    return flat.numpy().tobytes()


def geometry(tensor: torch.Tensor) -> dict[str, Any]:
    """Everything about a strided tensor but its bytes."""
    return {
        "type": type(tensor),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "size": tuple(tensor.size()),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "storage": tensor.untyped_storage().nbytes(),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "inference": tensor.is_inference(),
    }


def sharing(tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
    """For each tensor, the first that is the same object, and the first over the same memory."""
    objects = [id(tensor) for tensor in tensors]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [objects.index(item) for item in objects], [storages.index(item) for item in storages]


def assert_exactly_the_same(loaded: dict[str, Any], original: dict[str, Any]) -> None:
    assert list(loaded) == list(original)
    for name, tensor in original.items():
        assert geometry(loaded[name]) == geometry(tensor), name
        assert storage_bytes(loaded[name]) == storage_bytes(tensor), name
    assert sharing(list(loaded.values())) == sharing(list(original.values()))
