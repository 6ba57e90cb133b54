"""Large storages that a computation only reads, which its runs share instead of copying them.

Compiled code may write where it must not, and torch's version counters do not see what a kernel of Triton or
C++ writes: a fingerprint of the bytes does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from torchrepro.judge.clone import is_plain, window
from torchrepro.judge.compare import tensors_in
from torchrepro.torch_api.tensors import storage_identity, storage_number

LARGE = 1 << 20
"""Bytes from which a fingerprint is cheaper than a copy."""
_WIDTH = 4096

Storages = Mapping[int, torch.UntypedStorage]
"""Storages by their number."""


def storages_only_read(inputs: Sequence[Any], written: Collection[int]) -> Storages:
    """Return the large storages of plain tensors among the inputs and their gradients.

    `written` are the positions of the inputs that are written to. Their memory is left out, and so is memory
    that an exotic tensor is made of.
    """
    only_read: dict[int, torch.UntypedStorage] = {}
    excluded: set[tuple[str, int]] = set()
    for position, value in enumerate(inputs):
        for _, tensor in tensors_in(value):
            for each in (tensor, tensor.grad if tensor.is_leaf else None):
                if each is None:
                    continue
                if not is_plain(each):
                    return {}
                if position in written:
                    excluded.add(storage_identity(each))
                elif each.untyped_storage().nbytes() >= LARGE and not each.is_meta:
                    only_read[storage_number(each.untyped_storage())] = each.untyped_storage()
    addresses = {address for _, address in excluded}
    return {number: each for number, each in only_read.items() if each.data_ptr() not in addresses}


def fingerprints(storages: Iterable[torch.UntypedStorage]) -> list[torch.Tensor]:
    """Return for each storage the sums of the rows and columns of its words, modulo 2**64, and what is left.

    One word that changes, or two that change places, change a row or a column.
    """
    return [_fingerprint(storage) for storage in storages]


def _fingerprint(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.no_grad():
        words = window(storage, torch.int64)
        table = words[: len(words) // _WIDTH * _WIDTH].view(-1, _WIDTH)
        rest = window(storage, torch.uint8)[table.numel() * 8 :]
        return torch.cat([table.sum(0), table.sum(1), rest.to(torch.int64)])


def changed_storages(storages: Storages, before: Sequence[torch.Tensor]) -> set[int]:
    """Return the numbers of the storages that no longer have the fingerprints of before."""
    equal = [(old == _fingerprint(each)).all() for old, each in zip(before, storages.values(), strict=True)]
    # All are computed before the first is read, which waits for the device.
    return {number for number, flag in zip(storages, equal, strict=True) if not flag}
