"""The public face of the front end: `trace` captures a function or module when it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import torch

from torchrepro.errors import TorchReproError
from torchrepro.frontend.runtime.cache import LIMIT
from torchrepro.frontend.runtime.settings import Backend, Settings
from torchrepro.frontend.runtime.wrapping import traced_callable


@overload
def trace(
    target: None = None,
    *,
    backend: str | Backend = ...,
    fullgraph: bool = ...,
    verify: bool = ...,
    limit: int = ...,
    ranks: str | None = ...,
    record: str | Path | None = ...,
) -> Callable[[Any], Any]: ...


@overload
def trace(
    target: Any,
    *,
    backend: str | Backend = ...,
    fullgraph: bool = ...,
    verify: bool = ...,
    limit: int = ...,
    ranks: str | None = ...,
    record: str | Path | None = ...,
) -> Any: ...


def trace(
    target: Any = None,
    *,
    backend: str | Backend = "inductor",
    fullgraph: bool = False,
    verify: bool = False,
    limit: int = LIMIT,
    ranks: str | None = None,
    record: str | Path | None = None,
) -> Any:
    """Capture a function or module into graphs when it is called, and run the graphs.

    Args:
        target: a Python function, a bound method or an `nn.Module`; without it, a decorator is returned.
        backend: who compiles the graphs: a name that torch knows ("inductor", "aot_eager", "eager"), or a
            function `(graph_module, inputs) -> callable`.
        fullgraph: raise `CaptureError`, naming the place and the reason, where the function is not one graph.
        verify: run the function eagerly beside, on copies, and raise `AccuracyError` where the results differ
            by more than the judge allows.
        limit: how many regions one place of a function may have before Python runs it.
        ranks: "agree" makes the ranks of a distributed job agree on each graph before they compile it.
        record: a directory for bundles of the calls in which capture fails, for `torchrepro check`.
    """
    if target is None:
        return lambda later: trace(
            later,
            backend=backend,
            fullgraph=fullgraph,
            verify=verify,
            limit=limit,
            ranks=ranks,
            record=record,
        )
    if ranks not in (None, "agree"):
        raise TorchReproError(
            f"ranks={ranks!r} is not known", next_step='write ranks="agree" or leave it out'
        )
    settings = Settings(backend, fullgraph, limit, ranks == "agree", None if record is None else Path(record))
    if isinstance(target, torch.nn.Module):
        from torchrepro.frontend.module import TracedModule

        traced: Any = TracedModule(target, settings)
    else:
        traced = traced_callable(target, settings)
        if traced is target:
            raise TorchReproError(
                f"{target!r} is not a Python function, method or module",
                next_step="wrap the call in a function and trace that",
            )
    if not verify:
        return traced
    from torchrepro.frontend.verify import verified

    return verified(target, traced)
