"""`backend="torchrepro"` and `torchrepro.backend(...)`: a watched compiler for one `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

from torchrepro.catch.enable import current_session, open_session
from torchrepro.catch.settings import WatchSettings
from torchrepro.catch.torch_hooks import install, watched_backend
from torchrepro.execute.backends import WATCHES
from torchrepro.execute.compilers import backend_function
from torchrepro.nouns.repro import Compiler

_WATCH_OPTIONS = frozenset(field.name for field in fields(WatchSettings))


class WatchedBackend:
    """A backend of `torch.compile` that hands graphs to another one and watches it.

    Without options of its own it joins the watch of the process, if there is one.
    """

    def __init__(self, compiler: Compiler, settings: WatchSettings, **options: Any) -> None:
        joined = current_session() if not options else None
        self._session = joined or open_session(settings.changed(**options))
        setattr(self, WATCHES, True)
        self.compiler = compiler
        self._inner = backend_function(compiler)
        self.__name__ = f"torchrepro({compiler})"
        install(current_session)

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: list[Any], **kwargs: Any) -> Any:
        return watched_backend(self._inner, self._session, self.compiler)(graph, example_inputs, **kwargs)

    def reset(self) -> None:
        """Asked for by `torch._dynamo.reset()`."""
        reset = getattr(self._inner, "reset", None)
        if reset is not None:
            reset()


def backend(name: str = "inductor", *, mode: str | None = None, **options: Any) -> WatchedBackend:
    """A watched backend: `torch.compile(model, backend=torchrepro.backend("inductor", level=3))`.

    Options of the watch are those of `WatchSettings`; `options` and `dynamic` go to the compiler, as `mode`
    does.
    """
    compiler = Compiler(name, mode, options.pop("options", {}), options.pop("dynamic", None))
    return WatchedBackend(compiler, WatchSettings.from_environ(), **options)


_made: dict[str, WatchedBackend] = {}


def torchrepro(
    graph: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """What `torch.compile(model, backend="torchrepro", mode=..., options=...)` calls.

    Among the options, those of the watch (`level`, `out`, ...) and `backend` are ours, the others the
    compiler's.
    """
    given = dict(options or {})
    name = given.pop("backend", "inductor")
    ours = {key: given.pop(key) for key in list(given) if key in _WATCH_OPTIONS}
    asked = repr((name, mode, sorted(given.items()), sorted(ours.items())))
    if asked not in _made:
        _made[asked] = backend(name, mode=mode, options=given, **ours)
    return _made[asked](graph, example_inputs)  # type: ignore[no-any-return]


setattr(torchrepro, WATCHES, True)
