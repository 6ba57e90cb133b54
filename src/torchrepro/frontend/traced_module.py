"""TracedModule: a module whose calls are captured, and which is otherwise the module it wraps."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.runtime.wrapping import traced_callable
from torchrepro.frontend.trace.calls import ORIGINAL


class TracedModule(torch.nn.Module):
    """Reads and writes of attributes go to the original; parameters have the names that they have there.

    A copy wraps a copy of the original, and shares the captured regions where their guards hold.
    """

    def __init__(self, module: torch.nn.Module, settings: Settings) -> None:
        super().__init__()
        del self.__dict__["training"]  # the original's is meant
        self._modules[ORIGINAL] = module
        self.__dict__["_settings"] = settings
        self._register_load_state_dict_pre_hook(_rename_keys)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return traced_callable(self._inner, self._settings)(*args, **kwargs)

    @property
    def _inner(self) -> Any:
        return self.__dict__["_modules"][ORIGINAL]

    def __getattr__(self, name: str) -> Any:
        return self._inner if name == ORIGINAL else getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if ORIGINAL in self.__dict__.get("_modules", ()) and name not in self.__dict__:
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        yield from self._inner.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedModule:
        return type(self)(copy.deepcopy(self._inner, memo), self._settings)

    def __reduce__(self) -> Any:
        return type(self), (self._inner, self._settings)


def _rename_keys(state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Where a parent loads: it looks for the keys of the original behind its name."""
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}{ORIGINAL}.{key.removeprefix(prefix)}"] = state.pop(key)
