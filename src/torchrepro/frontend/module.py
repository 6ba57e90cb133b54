"""TracedModule: a module whose calls are captured, and which is otherwise the module it wraps."""

from __future__ import annotations

from typing import Any

import torch

from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.runtime.wrapping import traced_callable
from torchrepro.frontend.tracing.calls import ORIGINAL


class TracedModule(torch.nn.Module):
    """Parameters, buffers and children are those of the original, which trains and saves as before."""

    def __init__(self, module: torch.nn.Module, settings: Settings) -> None:
        super().__init__()
        self._modules[ORIGINAL] = module
        self.__dict__["_settings"] = settings
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return traced_callable(self._modules[ORIGINAL], self._settings)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        module = self._modules[ORIGINAL]
        return module if name == ORIGINAL else getattr(module, name)
