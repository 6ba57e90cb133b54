"""Kept: the objects that generated code refers to by name, because no text can stand for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchrepro.frontend.source import Held


@dataclass(slots=True)
class Kept:
    """Objects by identity. Kept alive, so that an `id()` in a `Held` source means one object for good."""

    objects: dict[int, Any] = field(default_factory=dict)

    def hold(self, value: Any, label: str) -> Held:
        self.objects[id(value)] = value
        return Held(label, id(value))

    def __getitem__(self, source: Held) -> Any:
        return self.objects[source.key]
