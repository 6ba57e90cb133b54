"""How a manifest describes storages: their bytes, or what stands for them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all entries. Defaults are left out, so that the common case stays one short line."""


# how the bytes of a storage come back when they are not in the file as they were


class Constant(Entry, tag="constant", frozen=True):
    """Exact: every element is this one."""

    element: bytes


class Progression(Entry, tag="progression", frozen=True):
    """Exact: start, start + step, start + 2 step, ... in integers of `itemsize` bytes."""

    itemsize: int
    start: int
    step: int


class Narrowed(Entry, tag="narrowed", frozen=True):
    """Exact: integers of `itemsize` bytes stored as their distance from `minimum` in `bits` bits each."""

    itemsize: int
    bits: Literal[1, 8, 16, 32]
    minimum: int


class RandomFloats(Entry, tag="random_floats", frozen=True):
    """Not exact: floating values of the same range, quantiles and special values, drawn from `seed`."""

    dtype: str
    """The component type for complex values."""
    resembles: str
    """For a reader: normal, uniform, other, or unknown where there was no data to look at."""
    mean: float
    std: float
    minimum: float
    maximum: float
    zeros: float
    """Fraction of exact zeros; the other statistics of shape leave them out."""
    nans: int
    infinities: int
    negative_infinities: int
    levels: list[float]
    quantiles: list[float]
    """The value at each level: what generation follows."""
    planted: list[tuple[int, bytes]]
    """Elements kept exactly: where the extremes and the first special values stood."""
    seed: int


class RandomIntegers(Entry, tag="random_integers", frozen=True):
    """Not exact, only for data that never existed (fake tensors): integers in [low, high)."""

    itemsize: int
    low: int
    high: int
    seed: int


Recipe: TypeAlias = Constant | Progression | Narrowed | RandomFloats | RandomIntegers


class StorageEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One storage. Not frozen: what is kept of it is decided after the last tensor that uses it is seen."""

    name: str
    nbytes: int
    device: str = "cpu"
    start: int = 0
    """Bytes cut off before the first one kept; offsets of tensors count from the uncut start."""
    recipe: Recipe | None = None
