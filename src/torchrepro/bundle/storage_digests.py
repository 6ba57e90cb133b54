"""Facts about the bytes of tensors, each found out once: thousands of candidates share the same weights.

Reading 400 MB takes half a second, and a search asks after every candidate. What is known of a memory is kept
by its storage object, which is held weakly, and holds as long as torch has not counted another write to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

Fact = TypeVar("Fact")

_ALWAYS_READ = 1 << 16
"""Bytes up to which they are read each time: a write through `.data` leaves the version as it is."""
_FORGET_EVERY = 1024


@dataclass(slots=True)
class _Known:
    """What is known of one storage; `alive` keeps its address from being given to another one."""

    alive: Any
    state: Hashable
    facts: dict[Hashable, Any] = field(default_factory=dict)


_known: dict[int, _Known] = {}


def digest_of_storage(tensor: torch.Tensor) -> str:
    """Return a digest of the whole memory under a tensor; empty where there is none (meta, fake)."""
    storage = tensor.untyped_storage()
    if tensor.device.type == "meta" or not storage.nbytes() or not storage.data_ptr():
        return ""
    if storage.nbytes() <= _ALWAYS_READ:
        return _digest(storage)
    return remembered(tensor, "digest", lambda: _digest(storage))


def remembered(tensor: torch.Tensor, question: Hashable, find_out: Callable[[], Fact]) -> Fact:
    """Return the answer to a question about a tensor's bytes, asked again only after a write to them."""
    storage = tensor.untyped_storage()
    known = _known.get(storage._cdata)
    state = (storage.data_ptr(), storage.nbytes(), _version(tensor))
    if known is None or known.alive.expired() or known.state != state:
        if len(_known) % _FORGET_EVERY == _FORGET_EVERY - 1:
            _forget_the_dead()
        known = _known[storage._cdata] = _Known(_weak(storage), state)
    if question not in known.facts:
        known.facts[question] = find_out()
    answer: Fact = known.facts[question]
    return answer


def _digest(storage: torch.UntypedStorage) -> str:
    """Return the digest of the bytes; those on the CPU are not copied."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    flat = view.set_(storage, 0, (storage.nbytes(),), (1,)).cpu()
    return hashlib.sha256(flat.numpy().data).hexdigest()


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; -1 for inference tensors, which torch does not write to."""
    return -1 if tensor.is_inference() else tensor._version


def _weak(storage: torch.UntypedStorage) -> Any:
    """Return a weak reference that keeps the storage's address, not its memory. Checked on 2.11 to 2.15."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(storage)


def _forget_the_dead() -> None:
    for address in [address for address, known in _known.items() if known.alive.expired()]:
        del _known[address]
