"""Names of torch that are loaded on first use, because importing their modules takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def loading(module: str, seams: Mapping[str, Seam]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module of seams: it loads the object behind a name."""

    def load(name: str) -> Any:
        seam = seams.get(name)
        if seam is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = import_module(seam.home)
        return home if seam.name == "." else getattr(home, seam.name or name)

    return load
