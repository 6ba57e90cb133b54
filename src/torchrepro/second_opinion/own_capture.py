"""A user's model captured by torchrepro's own front end and compiled by the compiler under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler


def compile_with_own_capture(
    compiler: Compiler, model: Callable[..., Any], backend: Callable[..., Callable[..., Any]]
) -> Callable[..., Any]:
    """Return the model with `torchrepro.trace` in the place of `torch.compile`."""
    from torchrepro.frontend.runtime.capture import CaptureError
    from torchrepro.second_opinion.api import trace

    if compiler.dynamic:
        raise TorchReproError(
            "torchrepro's front end captures static shapes", next_step="leave out --dynamic, or --frontend"
        )
    captured = trace(model, backend=_announced(backend), fullgraph=compiler.fullgraph)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return captured(*args, **kwargs)
        except CaptureError as error:
            raise NotCaptured(error) from error

    return call


class NotCaptured(Exception):
    """Capture with `fullgraph` failed: for the judge a result like any other error of the compiled side."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.inner_exception = error


def _announced(backend: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Return the backend, whose compilations are told to whoever follows those of Dynamo (`compilation`).

    Checked on torch 2.11 to 2.15 (`install_callbacks`, `CallbackTrigger`).
    """
    from torchrepro.torch_api.dynamo import CallbackTrigger, callback_handler

    def compile_fn(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "torchrepro"):
            return backend(graph, example_inputs)

    return compile_fn
