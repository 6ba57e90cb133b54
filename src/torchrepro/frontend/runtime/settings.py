"""Settings: how a function is captured. One object for it and for all that is captured on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.runtime.cache import LIMIT
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler

if TYPE_CHECKING:
    from torchrepro.frontend.runtime.region import Region

Backend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


@dataclass(frozen=True, eq=False)
class Settings:
    """Compared by identity: regions of one wrapped function are not those of another."""

    backend: str | Backend = "inductor"
    fullgraph: bool = False
    limit: int = LIMIT
    agree: bool = False
    """Whether the ranks of a distributed job agree on what they compile."""
    record: Path | None = None
    """Where a frame is kept in which capture fails."""
    watchers: list[Callable[[Region], None]] = field(default_factory=list)
    """Told of every region that is captured."""

    def compile(self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """The graph as the backend compiles it."""
        from torchrepro.execute.compilers import backend_function

        named = self.backend if callable(self.backend) else backend_function(Compiler(name=self.backend))
        compiled = named(graph, list(inputs))
        if not callable(compiled):
            raise TorchReproError(
                f"the backend {self.backend!r} returned {compiled!r}, which cannot be called",
                next_step="return a function that takes the inputs of the graph and gives its outputs",
            )
        return compiled
