"""The canonical key of a candidate: equal for two that no compiler and no judge could tell apart.

What is left out cannot matter: names of nodes, inputs, attributes and nested graphs, stack traces and
example values on nodes, notes for the reader, the failure that is expected, settings that are not data. What
cannot be described is keyed as itself, so that two candidates are never taken for one by mistake; asking once
too often is the smaller harm.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import torch

from torchrepro.bundle.entries import StorageEntry
from torchrepro.bundle.storage_digests import digest_of_storage
from torchrepro.bundle.storages import StorageTable, known
from torchrepro.bundle.values import describe_values
from torchrepro.engine.canonical_text import canonical_text, token_of
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.tensors import is_fake, storage_identity

_OPAQUE = b'{"kind":"opaque"'
"""How the description of something begins that cannot be described (`OpaqueEntry`)."""


def canonical_key(repro: Repro) -> str:
    """A digest of the graph without its names, of all values, and of everything around them."""
    storages = _Contents()
    graph = canonical_text(repro.graph)
    values = {
        **{f"input.{index}": value for index, value in enumerate(repro.inputs)},
        **{
            f"earlier.{call}.{index}": value
            for call, inputs in enumerate(repro.earlier)
            for index, value in enumerate(inputs)
        },
        **graph.values,
        **{f"rng.{device}": repro.ambient.rng[device] for device in sorted(repro.ambient.rng)},
    }
    entries = {name: msgspec.json.encode(entry) for name, entry in describe_values(values, storages).items()}
    described = msgspec.json.encode(
        [
            graph.text,
            {name: msgspec.Raw(entry) for name, entry in entries.items()},
            storages.digests,
            [token_of(values[name]) for name, entry in entries.items() if _OPAQUE in entry],
            [len(repro.inputs), [len(inputs) for inputs in repro.earlier]],
            _around(repro),
        ]
    )
    return hashlib.sha256(described).hexdigest()


def _around(repro: Repro) -> list[Any]:
    """Everything in a repro that is neither its graph nor a value; a field that is new counts at once."""
    left_out = {"graph", "inputs", "earlier", "ambient", "expected", "origin", "notes"}
    fields = {name: value for name, value in vars(repro).items() if name not in left_out}
    ambient = {
        name: getattr(repro.ambient, name)
        for name in repro.ambient.__slots__
        if name not in ("rng", "left_out")
    }
    return [
        msgspec.to_builtins(each, enc_hook=token_of, str_keys=True, order="sorted")
        for each in (fields, ambient)
    ]


class _Contents(StorageTable):
    """Which tensors lie in which memory, how large it is, and what lies in it."""

    def __init__(self) -> None:
        super().__init__()
        self.digests: list[str] = []
        self._entries: dict[tuple[str, int], StorageEntry] = {}

    def entry_for(self, tensor: torch.Tensor, where: str) -> StorageEntry:
        identity = storage_identity(tensor)
        if identity not in self._entries:
            nbytes = known(tensor.untyped_storage().nbytes())
            self._entries[identity] = StorageEntry(str(len(self._entries)), nbytes, str(tensor.device))
            self.digests.append("" if is_fake(tensor) else digest_of_storage(tensor))
        return self._entries[identity]
