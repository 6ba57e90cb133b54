"""Settings: how a function is captured. One object serves it and the functions captured in its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torchrepro.frontend.runtime.cache import LIMIT
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler

if TYPE_CHECKING:
    from torchrepro.frontend.runtime.capture import Region
    from torchrepro.frontend.source import FrameState
    from torchrepro.frontend.trace.tracer import SpeculationLog

Backend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


class RankHooks(Protocol):
    """How the ranks of a distributed job agree on what they compile (`second_opinion/lock_step.py`)."""

    def agree_on(
        self,
        log: SpeculationLog,
        function: FunctionType,
        index: int,
        graph: torch.fx.GraphModule,
        *,
        finish: bool,
    ) -> bool:
        """Return whether all ranks compile this graph now; if not, add the breaks of all of them to `log`."""
        ...

    def some_rank_misses(
        self, function: FunctionType, index: int, found: torch.fx.GraphModule | None
    ) -> bool:
        """Return whether some rank found no region for this call, or a region with another graph."""
        ...

    def failures_told(self, function: FunctionType, index: int) -> AbstractContextManager[None]:
        """Send an exception raised in the block to the waiting ranks."""
        ...


FailureHook = Callable[[FunctionType, "FrameState", Exception], None]
"""Called with the function, its frame at the start and the error where capture fails. Must not raise."""


@dataclass(frozen=True, eq=False)
class Settings:
    """Compared by identity: regions of one wrapped function are not those of another."""

    backend: str | Backend = "inductor"
    fullgraph: bool = False
    limit: int = LIMIT
    ranks: RankHooks | None = None
    """None: each rank of a distributed job compiles what it captures, independently of the others."""
    on_failure: FailureHook | None = None
    watchers: tuple[Callable[[Region], None], ...] = ()
    """Called with every region that is captured."""

    def compile(self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Return the graph compiled by the backend."""
        from torchrepro.execute.compilers import backend_function

        named = self.backend if callable(self.backend) else backend_function(Compiler(name=self.backend))
        compiled = named(graph, list(inputs))
        if not callable(compiled):
            raise TorchReproError(
                f"the backend {self.backend!r} returned {compiled!r}, which cannot be called",
                next_step="return a function that takes the inputs of the graph and gives its outputs",
            )
        return compiled
