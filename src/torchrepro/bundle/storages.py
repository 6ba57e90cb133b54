"""The memory under packed tensors: every storage once, whole or only the part that is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.bundle.entries import RandomFloats, StorageEntry, StridedEntry
from torchrepro.bundle.recipes import can_resemble, exact_recipe, follow, random_recipe, unknown_data
from torchrepro.nouns.errors import BundleError
from torchrepro.torch_api.tensors import hint, is_fake, storage_identity

WASTE_WORTH_CUTTING = 1 << 20
"""A storage is kept whole unless more than this, and more than half of it, is outside all views.

Keeping it whole is the safe choice: a graph may reach beyond its input with `as_strided`."""
ALIGNMENT = 64
"""Cuts fall on torch's own alignment, so that no view becomes less aligned than it was."""


_ELEMENTS_PER_BYTE = {torch.quint4x2: 2, torch.quint2x4: 4}


class NoHint(ValueError):
    """A symbolic size depends on data that does not exist yet."""


def known(number: int | torch.SymInt) -> int:
    """Return a size as a plain integer: the hint of a symbolic one."""
    value = hint(number)
    if value is None:
        raise NoHint(f"its size {number} depends on data")
    return int(value)


def byte_span(size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return first and last-plus-one byte that a strided view touches; equal where it has no elements."""
    itemsize = dtype.itemsize
    if 0 in size:
        return offset * itemsize, offset * itemsize
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1
    if dtype in _ELEMENTS_PER_BYTE:
        # torch packs these row by row in a contiguous tensor and knows no views of them.
        return 0, -(-math.prod(size) // _ELEMENTS_PER_BYTE[dtype])
    return offset * itemsize, last * itemsize


@dataclass
class _Use:
    """One storage and all that is known about its use so far."""

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
        """Return the kept bytes as a uint8 tensor on the CPU; no copy if they are there already."""
        view = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return view.set_(self.storage, self.entry.start, (self.entry.nbytes,), (1,)).cpu()

    def who(self) -> str:
        shown = ", ".join(self.users[:3])
        return shown if len(self.users) <= 3 else f"{shown} and {len(self.users) - 3} more"


class StorageTable:
    """Collects the storages of all tensors, then decides what is kept of each."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, int], _Use] = {}
        self._names = {"__metadata__"}

    def entry_for(self, tensor: torch.Tensor, where: str) -> StorageEntry:
        """Return the entry shared by all tensors over this tensor's memory; filled in by `finish`."""
        storage = tensor.untyped_storage()
        nbytes = known(storage.nbytes())
        key = storage_identity(tensor)
        use = self._uses.get(key)
        if use is None:
            entry = StorageEntry(self._unused_name(where), nbytes, str(tensor.device))
            use = self._uses[key] = _Use(entry, storage, nbytes, is_fake(tensor))
        elif nbytes > use.nbytes:
            use.storage, use.nbytes = storage, nbytes
        use.users.append(where)
        use.dtypes.append(tensor.dtype)
        size, stride = [known(n) for n in tensor.size()], [known(n) for n in tensor.stride()]
        use.spans.append(byte_span(size, stride, known(tensor.storage_offset()), tensor.dtype))
        return use.entry

    def _unused_name(self, where: str) -> str:
        stem = where.encode("ascii", "backslashreplace").decode()
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}#{count}"
        self._names.add(name)
        return name

    def finish(self, size_cap: int) -> tuple[dict[str, torch.Tensor], list[str]]:
        """Fill in every entry; give the bytes to write, by name, and what was not kept exactly."""
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
                dtypes = set(use.dtypes)
                dtype = use.dtypes[0] if len(dtypes) == 1 else torch.uint8
                use.entry.recipe = unknown_data(dtype, seed)
                notes.append(f"{use.who()}: no data existed (fake tensor); values are generated on loading")
        real = [use for use in self._uses.values() if use.has_bytes]
        total = sum(use.entry.nbytes for use in real)
        storages: dict[str, torch.Tensor] = {}
        for seed, use in enumerate(sorted(real, key=lambda use: -use.entry.nbytes)):
            if total > size_cap:
                stored, note = _shorten(use, seed, size_cap)
                notes += note
                total -= use.entry.nbytes - (0 if stored is None else stored.numel())
            else:
                stored = use.flat()
            if stored is not None:
                storages[use.entry.name] = stored
        return dict(sorted(storages.items())), notes


def _shorten(use: _Use, seed: int, size_cap: int) -> tuple[torch.Tensor | None, list[str]]:
    """Keep a storage in less room: what is still to be stored, and the note that this deserves."""
    flat = use.flat()
    dtypes = set(use.dtypes)
    size, cap = human_size(flat.numel()), human_size(size_cap)
    if len(dtypes) == 1:
        dtype = use.dtypes[0]
        short = exact_recipe(flat, dtype)
        if short is not None:
            use.entry.recipe, stored = short
            return stored, []
        if can_resemble(dtype) and flat.numel() % dtype.itemsize == 0:
            use.entry.recipe = recipe = random_recipe(flat, dtype, seed)
            return None, [f"{use.who()}: {size} of {dtype} above the cap of {cap}, {_in_words(recipe)}"]
        return flat, [f"{use.who()}: {size} of {dtype} kept exactly, although above the cap of {cap}"]
    return flat, [
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


def human_size(nbytes: int) -> str:
    """1536 -> '1.5 KiB'."""
    amount, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} bytes" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"


DAMAGED = "the bundle is damaged: get a fresh copy, or capture the failure again"

LoadStorage = Callable[[str], torch.Tensor]
DeviceMap = Callable[[torch.device], torch.device]


def available_device(wanted: torch.device) -> torch.device:
    """Return the device itself where this machine has it, else the CPU."""
    if wanted.type in ("cpu", "meta"):
        return wanted
    module = getattr(torch, wanted.type, None)
    if module is None or not module.is_available():
        return torch.device("cpu")
    return wanted if (wanted.index or 0) < module.device_count() else torch.device(wanted.type, 0)


def find_constant(name: str, *kinds: type) -> Any:
    """torch.<name>, which must be a dtype, layout, ...; an older torch may not have it."""
    found = getattr(torch, name, None)
    if not isinstance(found, kinds):
        raise BundleError(
            f"the bundle uses torch.{name}, which torch {torch.__version__} does not have",
            next_step="use the torch version that the manifest names",
        )
    return found


class StorageLoader:
    """Loads each storage once, onto its device."""

    def __init__(self, load: LoadStorage, device_map: DeviceMap) -> None:
        self._load = load
        self._device_map = device_map
        self._loaded: dict[str, tuple[StorageEntry, torch.UntypedStorage]] = {}

    def device(self, name: str) -> torch.device:
        return self._device_map(parse_device(name))

    def storage(self, entry: StorageEntry) -> torch.UntypedStorage:
        known, storage = self._loaded.get(entry.name, (None, None))
        if storage is None:
            storage = self._fetch(entry)
            self._loaded[entry.name] = (entry, storage)
        elif known != entry:
            raise BundleError(f"two descriptions of the storage {entry.name!r} differ", next_step=DAMAGED)
        return storage

    def _fetch(self, entry: StorageEntry) -> torch.UntypedStorage:
        device = self.device(entry.device)
        if entry.nbytes == 0 or device.type == "meta":
            return torch.empty(entry.nbytes, dtype=torch.uint8, device=device).untyped_storage()
        if entry.recipe is None:
            flat = self._load(entry.name)
        else:
            flat = follow(entry.recipe, entry.nbytes, lambda: self._load(entry.name))
        if flat.numel() != entry.nbytes:
            raise BundleError(
                f"the storage {entry.name!r} has {flat.numel()} bytes where the manifest says {entry.nbytes}",
                next_step=DAMAGED,
            )
        if device.type != "cpu":
            return flat.to(device).untyped_storage()
        owns_all = flat.storage_offset() == 0 and flat.untyped_storage().nbytes() == entry.nbytes
        # Kernels may assume the alignment that torch's own allocator gives.
        return (flat if owns_all and flat.data_ptr() % ALIGNMENT == 0 else flat.clone()).untyped_storage()

    def view(
        self, entry: StridedEntry, empty: Callable[[torch.dtype, torch.device], torch.Tensor]
    ) -> torch.Tensor:
        """Return a tensor over the entry's storage. Checked first: torch would grow a short storage."""
        dtype = find_constant(entry.dtype, torch.dtype)
        kept = entry.storage
        offset = entry.offset - kept.start // dtype.itemsize
        sane = (
            len(entry.size) == len(entry.stride)
            and min((*entry.size, *entry.stride, offset, kept.nbytes)) >= 0
        )
        if sane:
            low, high = byte_span(entry.size, entry.stride, offset, dtype)
            freed = kept.nbytes == 0
            sane = kept.start % dtype.itemsize == 0 and (freed or low == high or high <= kept.nbytes)
        if not sane:
            raise BundleError(
                f"a tensor of size {entry.size} and stride {entry.stride} does not fit storage {kept.name!r}",
                next_step=DAMAGED,
            )
        storage = self.storage(kept)
        tensor = empty(dtype, self.device(kept.device))
        return tensor.set_(storage, offset, entry.size, entry.stride)

    def free_again(self) -> None:
        """Storages that were freed under their tensors (as FSDP does) grew when these were made."""
        for entry, storage in self._loaded.values():
            if storage.nbytes() != entry.nbytes:
                storage.resize_(entry.nbytes)


def parse_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise BundleError(f"{name!r} is no device that torch knows", next_step=DAMAGED) from error
