"""A small world to rebuild in: what a tracer would know, told by the test."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from types import CellType
from typing import Any

import torch

from torchrepro.frontend.codegen.effects import Effects
from torchrepro.frontend.codegen.objects import Shadow, ShadowKind, attributes, is_full, slots
from torchrepro.frontend.codegen.rebuild import Rebuilder, RegionText, compile_region
from torchrepro.frontend.codegen.writer import Kept, Writer
from torchrepro.frontend.source import Local, Source


class SmallWorld:
    """Old objects are locals. A tensor that is not old is an output of the graph, which gives back a copy."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.shadows: list[Shadow] = []
        self.locals: dict[str, Any] = {}
        self.outputs: list[torch.Tensor] = []
        self.fresh: list[Any] = []
        self._sources: dict[int, Source] = {}
        self._stand_ins: dict[int, Any] = {}
        self._inputs: dict[int, Source] = {}

    def source_of(self, value: Any) -> Source | None:
        return self._sources.get(id(value)) or self._inputs.get(id(value))

    def output_index(self, value: torch.Tensor) -> int:
        for index, known in enumerate(self.outputs):
            if known is value:
                return index
        self.outputs.append(value)
        return len(self.outputs) - 1

    def is_fresh(self, value: Any) -> bool:
        return any(value is known for known in self.fresh)

    def is_opaque(self, value: Any) -> bool:
        return False

    def stand_in(self, original: Any) -> Any:
        return self._stand_ins.get(id(original), original)

    def old(self, name: str, value: Any) -> Any:
        self.locals[name] = value
        self._sources[id(value)] = Local(name)
        return value

    def made(self, value: Any) -> Any:
        self.fresh.append(value)
        return value

    def input(self, name: str, real: torch.Tensor) -> torch.Tensor:
        """The tensor that tracing uses for an old one."""
        fake = torch.empty_like(real)
        self.locals[name] = real
        self._inputs[id(fake)] = Local(name)
        self._stand_ins[id(real)] = fake
        self.fresh.append(fake)
        return fake

    def shadow(self, name: str, original: Any, kind: ShadowKind) -> Any:
        """A copy to change in place of an old object."""
        self.old(name, original)
        stand_in = self._copy(original, kind)
        if kind not in (ShadowKind.ATTRIBUTES, ShadowKind.SLOTS):
            self._sources[id(stand_in)] = Local(name)
            self._stand_ins[id(original)] = stand_in
        self.shadows.append(Shadow(Local(name), original, stand_in, kind))
        return stand_in

    def _copy(self, original: Any, kind: ShadowKind) -> Any:
        match kind:
            case ShadowKind.LIST:
                return [self.stand_in(item) for item in list.__iter__(original)]
            case ShadowKind.SET:
                return {self.stand_in(item) for item in original}
            case ShadowKind.DEQUE:
                return deque((self.stand_in(item) for item in original), original.maxlen)
            case ShadowKind.CELL:
                return CellType(self.stand_in(original.cell_contents)) if is_full(original) else CellType()
            case ShadowKind.ATTRIBUTES:
                held = vars(original) if issubclass(type(original), type) else attributes(original)
                return {key: self.stand_in(value) for key, value in held.items()}
            case ShadowKind.SLOTS:
                return {key: self.stand_in(value) for key, value in slots(original)}
        items = {self.stand_in(key): self.stand_in(value) for key, value in dict.items(original)}
        if isinstance(original, defaultdict):
            return defaultdict(original.default_factory, items)
        return OrderedDict(items) if isinstance(original, OrderedDict) else items

    def region(self, value: Any) -> RegionText:
        """The region that ends with this value and with the shadows as they are now."""
        rebuilder = Rebuilder(self, Writer(self.kept))
        effects = Effects(rebuilder)
        result = rebuilder.expression(value)
        effects.write_all()
        outputs = list(self.outputs)
        return compile_region(
            "test", rebuilder, result, (lambda: [it.clone() for it in outputs]) if outputs else None, []
        )

    def rebuilt(self, value: Any) -> Any:
        return self.region(value).run(self.locals, {}, ())
