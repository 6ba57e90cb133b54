"""How to hunt, and what a hunt found. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec


@dataclass(frozen=True, slots=True)
class HuntSettings:
    """How to hunt."""

    seconds: float | None = None
    """None: until Ctrl-C, or until enough was found."""
    programs: int | None = None
    """End after so many seeds."""
    until_new: int | None = None
    """End once so many new buckets were found (failures, where they are not sorted)."""
    seed: int = 0
    seeds: tuple[str, ...] | None = None
    """Judge these programs; None: those that follow from `seed`."""
    torch: str = ""
    """The version that has to be imported; empty: whichever is."""
    generators: tuple[str, ...] = ()
    """By name; empty: all."""
    corpora: tuple[str, ...] = ()
    """Directories of corpora whose bundles some generators start from; kept when the hunt begins."""
    trusted: tuple[str, ...] = ()
    """Makes bundles in them that are a stranger's the user's own: modules that they may call."""
    jobs: int | None = None
    """Processes at a time; None: one for each core."""
    neighbours: int = 1
    """Hunts on this machine at the same time, which share its cores and its memory."""
    batch: int = 128
    """Programs in a compilation, at most."""
    sort_seconds: float = 300.0
    """For minifying and locating one failure; 0: failures are not sorted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A program that failed."""

    seed: str
    signature: str
    summary: str
    bundle: str
    not_saved: str = ""
    bucket: str = ""


@dataclass(frozen=True, slots=True)
class Hunted:
    """What the hunts in a directory have found, this one and those before."""

    directory: str
    seed: str
    programs: int
    no_programs: int
    """Seeds that led to nothing that eager runs."""
    kinds: Mapping[str, int]
    failures: tuple[Failure, ...]
    buckets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The seeds of each bucket."""
    judged_now: int = 0
    """Programs of this run alone."""
    seconds: float = 0.0
    """Of this run, after warming up."""
    stopped: str = ""
    notes: tuple[str, ...] = ()
    """What the sources of this run lack."""

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {**msgspec.to_builtins(self), "seeds": [failure.seed for failure in self.failures]}
