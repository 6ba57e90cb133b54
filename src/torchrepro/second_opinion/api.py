"""The public API of the front end: `trace` captures a function or module when it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from torchrepro.frontend.runtime.cache import LIMIT
from torchrepro.frontend.runtime.capture import CaptureError
from torchrepro.frontend.runtime.settings import Backend, FailureHook, Settings
from torchrepro.frontend.runtime.wrapping import (
    as_python,
    not_python,
    traced_callable,
    untraced,
    why_python_runs,
)
from torchrepro.frontend.source import FrameState
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler, Frontend
from torchrepro.second_opinion.lock_step import AgreeingRanks


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
        target: a Python function, a method or an `nn.Module`; without it, a decorator is returned. If it is
            compiled or captured already, the original is captured.
        backend: the compiler of the graphs: a backend of torch ("inductor", "aot_eager", "eager"), or a
            function `(graph_module, inputs) -> callable`.
        fullgraph: raise `CaptureError`, with the place and the reason, if the function is not one graph.
        verify: run the function eagerly too, on clones of its state, and raise `AccuracyError` if the
            results differ by more than the judge allows.
        limit: how many regions one place of a function may have before Python runs it.
        ranks: "agree" makes the ranks of a distributed job agree on each graph before they compile it.
        record: a directory for bundles of the calls in which capture fails, for `torchrepro check`.
    """
    if ranks not in (None, "agree"):
        raise TorchReproError(
            f"ranks={ranks!r} is not known", next_step='write ranks="agree" or leave it out'
        )
    if not isinstance(limit, int) or limit < 1:
        raise TorchReproError(
            f"limit={limit!r} is not a number of regions", next_step="write an integer from 1 on"
        )
    _require_backend(backend)
    settings = Settings(
        backend,
        fullgraph,
        limit,
        ranks=None if ranks is None else AgreeingRanks(),
        on_failure=None if record is None else _recorder(backend, fullgraph, Path(record)),
    )
    wrap = functools.partial(_traced, settings=settings, verify=verify)
    return wrap if target is None else wrap(target)


def _recorder(backend: str | Backend, fullgraph: bool, directory: Path) -> FailureHook:
    """Return the hook that records the frames in which capture fails under `directory`."""

    def keep(function: FunctionType, state: FrameState, error: Exception) -> None:
        from torchrepro.execute.backends import compiler_of
        from torchrepro.second_opinion.record_frame import keep_failure

        compiler, _ = compiler_of(backend)
        own = replace(compiler, frontend=Frontend.TORCHREPRO, fullgraph=fullgraph)
        keep_failure(function, state, error, directory, own)

    return keep


def _require_backend(backend: Any) -> None:
    if isinstance(backend, str):
        from torchrepro.execute.compilers import require_known

        require_known(Compiler(backend))
    elif not callable(backend):
        raise TorchReproError(
            f"backend={backend!r} is neither a name nor a function",
            next_step='write a name such as "eager", or a function (graph_module, inputs) -> callable',
        )


def _traced(target: Any, settings: Settings, verify: bool) -> Any:
    if isinstance(target, staticmethod | classmethod):
        return type(target)(_traced(target.__func__, settings, verify))
    target = as_python(untraced(target))
    if not settings.fullgraph and why_python_runs(target):
        return target
    if isinstance(target, torch.nn.Module):
        from torchrepro.frontend.runtime.wrapping import TracedModule

        traced: Any = TracedModule(target, settings)
    else:
        traced = traced_callable(target, settings)
        if traced is target:
            raise not_python(target, "trace")
    if not verify:
        return traced
    from torchrepro.second_opinion.verify import verified

    return verified(target, traced)


def compile_with_own_capture(
    compiler: Compiler, model: Callable[..., Any], backend: Callable[..., Callable[..., Any]]
) -> Callable[..., Any]:
    """Return the model captured by `torchrepro.trace` instead of `torch.compile`."""
    if compiler.dynamic:
        raise TorchReproError(
            "torchrepro's front end captures static shapes", next_step="leave out --dynamic, or --frontend"
        )
    return _Captured(trace(model, backend=_announced(backend), fullgraph=compiler.fullgraph))


class _Captured:
    """A captured model that raises `NotCaptured`; its attributes are the model's."""

    def __init__(self, captured: Callable[..., Any]) -> None:
        self._captured = captured

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._captured(*args, **kwargs)
        except CaptureError as error:
            raise NotCaptured(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._captured, name)


class NotCaptured(Exception):
    """Capture with `fullgraph` failed. The judge treats it like other errors of the compiled side."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.inner_exception = error


def _announced(backend: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Return the backend with Dynamo's compilation callbacks around its compilations (`compilation`)."""
    from torchrepro.torch_api.dynamo import CallbackTrigger, callback_handler

    def compile_fn(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "torchrepro"):
            return backend(graph, example_inputs)

    return compile_fn
