"""The memory under packed tensors: every storage once, whole or only the part that is looked at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from torchrepro.bundle.recipes import can_resemble, exact_recipe, random_recipe, unknown_data
from torchrepro.bundle.storage_entries import RandomFloats, Recipe, StorageEntry
from torchrepro.bundle.storage_file import ALIGNMENT, byte_span, human_size, memory_of
from torchrepro.graph_text.syntax import unused_name
from torchrepro.nouns.errors import in_a_line
from torchrepro.torch_api.tensors import hint, is_fake, storage_identity, storage_number, version_of

WASTE_WORTH_CUTTING = 1 << 20
"""A storage is kept whole unless more than this, and more than half of it, is outside all views.

Keeping it whole is the safe choice: a graph may reach beyond its input with `as_strided`."""


class NotKept(ValueError):
    """A tensor that cannot be described, with the reason."""


def known(number: int | torch.SymInt) -> int:
    """Return a size as a plain integer: the hint of a symbolic one."""
    value = hint(number)
    if value is None:
        raise NotKept(f"its size {number} depends on data")
    return int(value)


@dataclass
class _Use:
    """One storage and its uses so far."""

    entry: StorageEntry
    storage: torch.UntypedStorage
    nbytes: int
    fake: bool
    users: list[str] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def has_bytes(self) -> bool:
        return not self.fake and self.storage.device.type != "meta"

    def kept_range(self) -> tuple[int, int]:
        low = min(first for first, _ in self.spans) // ALIGNMENT * ALIGNMENT
        high = max(last for _, last in self.spans)
        waste = self.nbytes - (high - low)
        # A view ends after its storage where that was freed under it (`resize_(0)`).
        if high > self.nbytes or waste <= max(WASTE_WORTH_CUTTING, self.nbytes // 2):
            return 0, self.nbytes
        return low, high

    def flat(self) -> torch.Tensor:
        return bytes_of(self.storage, self.entry.start, self.entry.nbytes)

    def in_place(self) -> torch.Tensor:
        return bytes_in_place(self.storage, self.entry.start, self.entry.nbytes)

    def unknown_data(self, seed: int) -> Recipe:
        return unknown_data(self.dtypes[0] if len(set(self.dtypes)) == 1 else torch.uint8, seed)

    def who(self) -> str:
        return _named(self.users)


def _named(users: list[str]) -> str:
    shown = ", ".join(users[:3])
    return shown if len(users) <= 3 else f"{shown} and {len(users) - 3} more"


class StorageTable:
    """Collects the storages of all tensors, then decides what is kept of each."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, int], _Use] = {}
        self._names = {"__metadata__"}

    def entry_for(self, tensor: torch.Tensor, where: str) -> StorageEntry:
        """Return the entry shared by all tensors over this tensor's memory; filled in by `finish`."""
        storage = tensor.untyped_storage()
        nbytes = known(storage.nbytes())
        size, stride = [known(n) for n in tensor.size()], [known(n) for n in tensor.stride()]
        span = byte_span(size, stride, known(tensor.storage_offset()), tensor.dtype)
        key = storage_identity(tensor)
        use = self._uses.get(key)
        if use is None:
            stem = where.encode("ascii", "backslashreplace").decode()
            entry = StorageEntry(unused_name(stem, self._names, join="#"), nbytes, str(tensor.device))
            self._names.add(entry.name)
            use = self._uses[key] = _Use(entry, storage, nbytes, is_fake(tensor))
        elif nbytes > use.nbytes:
            use.storage, use.nbytes = storage, nbytes
        use.users.append(where)
        use.dtypes.append(tensor.dtype)
        use.spans.append(span)
        return use.entry

    def finish(self, size_cap: int) -> tuple[dict[str, torch.Tensor], list[str]]:
        """Fill in every entry; return the bytes to write, by name, and notes on what was not kept exactly."""
        notes: list[str] = []
        for seed, use in enumerate(self._uses.values()):
            start, stop = use.kept_range()
            use.entry.start, use.entry.nbytes = start, stop - start
            if use.has_bytes and stop - start < use.nbytes:
                notes.append(
                    f"{use.who()}: only the {human_size(stop - start)} in use are kept of a storage of "
                    f"{human_size(use.nbytes)}"
                )
            if use.fake:
                use.entry.recipe = use.unknown_data(seed)
        if fakes := [user for use in self._uses.values() if use.fake for user in use.users]:
            notes.append(f"{_named(fakes)}: no data existed (fake tensors); values are generated on loading")
        real = [use for use in self._uses.values() if use.has_bytes]
        total = sum(use.entry.nbytes for use in real)
        storages: dict[str, torch.Tensor] = {}
        for seed, use in enumerate(sorted(real, key=lambda use: -use.entry.nbytes)):
            stored: torch.Tensor | None
            try:
                if total > size_cap:
                    stored, note = _shorten(use, seed, size_cap)
                    notes += note
                    total -= use.entry.nbytes - (0 if stored is None else stored.numel())
                else:
                    stored = use.flat()
            except Exception as exc:
                # Its device may just have failed, or there may be no memory for a copy.
                stored, use.entry.recipe = None, use.unknown_data(seed)
                notes.append(
                    f"{use.who()}: cannot be read ({in_a_line(exc)}); values are generated on loading"
                )
            if stored is not None:
                storages[use.entry.name] = stored
        return dict(sorted(storages.items())), notes

    def origins(self) -> dict[str, tuple[int, int]]:
        """Return the address of each storage that is kept as it is, and where what is kept of it starts."""
        return {
            use.entry.name: (use.storage.data_ptr(), use.entry.start)
            for use in self._uses.values()
            if use.has_bytes and use.entry.recipe is None
        }


def _shorten(use: _Use, seed: int, size_cap: int) -> tuple[torch.Tensor | None, list[str]]:
    """Keep a storage in less room; return what is still to be stored, and notes on it."""
    size, cap = human_size(use.entry.nbytes), human_size(size_cap)
    if len(set(use.dtypes)) == 1:
        dtype = use.dtypes[0]
        # Floats are described on their device: it takes a fraction of the time.
        is_float = can_resemble(dtype) and use.entry.nbytes % dtype.itemsize == 0
        flat = use.in_place() if is_float else use.flat()
        short = exact_recipe(flat, dtype)
        if short is not None:
            use.entry.recipe, stored = short
            return stored, []
        if is_float:
            use.entry.recipe = recipe = random_recipe(flat, dtype, seed)
            return None, [f"{use.who()}: {size} of {dtype} above the cap of {cap}, {_in_words(recipe)}"]
        return flat, [f"{use.who()}: {size} of {dtype} kept exactly, although above the cap of {cap}"]
    return use.flat(), [
        f"{use.who()}: {size} seen as several dtypes, kept exactly, although above the cap of {cap}"
    ]


def _in_words(recipe: RandomFloats) -> str:
    specials = recipe.nans + recipe.infinities + recipe.negative_infinities
    extra = f", {recipe.zeros:.0%} zeros" if recipe.zeros >= 0.005 else ""
    extra += f", {specials} not finite" if specials else ""
    return (
        f"replaced on loading by similar random values (mean {recipe.mean:.3g}, std {recipe.std:.3g}, "
        f"from {recipe.minimum:.3g} to {recipe.maximum:.3g}{extra})"
    )


# Facts about the bytes of tensors, each computed once: thousands of candidates share the same weights, and
# reading 400 MB takes half a second. Facts about a memory are kept by its storage object, which is held
# weakly, and are valid until torch counts another write to it.

Fact = TypeVar("Fact")

_ALWAYS_READ = 1 << 16
"""Bytes up to which they are read each time: a write through `.data` leaves the version as it is."""
_FORGET_EVERY = 1024


@dataclass(slots=True)
class _Known:
    """Facts about one storage; `alive` keeps its address from being given to another one."""

    alive: Any
    state: Hashable
    facts: dict[Hashable, Any] = field(default_factory=dict)


_known: dict[int, _Known] = {}


def digest_of_storage(tensor: torch.Tensor) -> str:
    """Return a digest of the whole memory under a tensor; empty where there is none (meta, fake)."""
    storage = tensor.untyped_storage()
    if tensor.device.type == "meta" or not storage.nbytes() or not storage.data_ptr():
        return ""

    def digest() -> str:
        flat = bytes_of(storage, 0, storage.nbytes())
        return hashlib.sha256(memory_of(flat)).hexdigest()

    return digest() if storage.nbytes() <= _ALWAYS_READ else remembered(tensor, "digest", digest)


def remembered(tensor: torch.Tensor, question: Hashable, find_out: Callable[[], Fact]) -> Fact:
    """Return a fact about a tensor's bytes, which is computed again only after a write to them."""
    from torch.multiprocessing.reductions import StorageWeakRef  # keeps the address, not the memory

    storage = tensor.untyped_storage()
    known = _known.get(storage_number(storage))
    # Inference tensors have no version: torch does not write to them.
    version = -1 if tensor.is_inference() else version_of(tensor)
    state = (storage.data_ptr(), storage.nbytes(), version)
    if known is None or known.alive.expired() or known.state != state:
        if len(_known) % _FORGET_EVERY == _FORGET_EVERY - 1:
            for address in [address for address, known in _known.items() if known.alive.expired()]:
                del _known[address]
        known = _known[storage_number(storage)] = _Known(StorageWeakRef(storage), state)
    if question not in known.facts:
        known.facts[question] = find_out()
    answer: Fact = known.facts[question]
    return answer


def bytes_of(storage: torch.UntypedStorage, start: int, length: int) -> torch.Tensor:
    """Return bytes of a storage as a uint8 tensor on the CPU; no copy if they are there already."""
    return bytes_in_place(storage, start, length).cpu()


def bytes_in_place(storage: torch.UntypedStorage, start: int, length: int) -> torch.Tensor:
    """Return bytes of a storage as a uint8 tensor on its device, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (length,), (1,))
