"""Names of torch that are loaded on first use, because importing their modules takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

ALL_VERSIONS = "2.11 to 2.15"


@dataclass(frozen=True, slots=True)
class Seam:
    """A private name of torch: its module, its use in torchrepro, and the versions it was checked on."""

    home: str
    purpose: str
    name: str = ""
    """Its name in torch, if torchrepro's is different."""
    versions: str = ALL_VERSIONS


def load_seam(module: str, seams: Mapping[str, Seam], name: str) -> Any:
    """Return the object behind a name, as the `__getattr__` of a module of seams."""
    seam = seams.get(name)
    if seam is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home = import_module(seam.home)
    return home if seam.name == "." else getattr(home, seam.name or name)
