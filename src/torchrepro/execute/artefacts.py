"""One compilation of a repro, kept, and called on any number of inputs.

A call finds parameters and buffers as they were before the first one, so that no call sees what another has
written. The compilation happens in the first call, where the judge attributes what it raises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import torch

from torchrepro.execute.collectives import without_other_ranks
from torchrepro.execute.compilers import compile_model
from torchrepro.execute.judge_repro import (
    Prepared,
    compilation,
    repro_common,
    subject_of_prepared,
)
from torchrepro.execute.judge_user_call import CallTrial, FreshCall, subject_of_call
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.compare import needs_grad, reduce_to_scalar_loss
from torchrepro.judge.execute import Run, call_as_it_asks, named_state
from torchrepro.judge.models import Phase, Subject
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_modes


class Artefact(Protocol):
    """A compiled repro, or its eager form, as something to call again and again."""

    def subject(self, inputs: tuple[Any, ...]) -> Subject:
        """Return the ways to run it on these inputs that are compared: each on clones of them."""
        ...

    def run(self, inputs: tuple[Any, ...]) -> Run:
        """Call it on the given objects themselves, and return all that the call leaves."""
        ...

    def execute(self, inputs: tuple[Any, ...]) -> Any:
        """Call it on the given objects, with backward where the judge runs it, and do nothing else."""
        ...


def artefact_of(repro: Repro, phase: Phase, *, fp64: bool = True, compiles: bool = True) -> Artefact:
    """Return an artefact that is not compiled yet; with `compiles=False`, one that runs in eager."""
    if repro.place is Place.BEFORE_CAPTURE:
        return CallArtefact(repro, phase, fp64=fp64, compiles=compiles)
    return GraphArtefact(repro, phase, fp64=fp64, compiles=compiles)


class _State:
    """Parameters and buffers as they are now, to be restored before each call."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._values = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def restore(self) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(self._values[name])


def _with_backward(outputs: Any, *, only_fwd: bool) -> Any:
    if not only_fwd and needs_grad(outputs):
        reduce_to_scalar_loss(outputs).backward()
    return outputs


class GraphArtefact:
    """A captured graph, compiled once; a compilation that raises is retried in the next call."""

    def __init__(self, repro: Repro, phase: Phase, *, fp64: bool = True, compiles: bool = True) -> None:
        self._prepared = repro_common(repro)
        self._phase, self._fp64, self._compiles = phase, fp64, compiles
        self._made: tuple[torch.fx.GraphModule, Callable[..., Any], _State] | None = None

    def subject(self, inputs: tuple[Any, ...]) -> Subject:
        prepared = Prepared(replace(self._prepared.repro, inputs=inputs))
        return subject_of_prepared(prepared, self._phase, self.function, fp64=self._fp64)

    def function(self) -> tuple[torch.fx.GraphModule, Callable[..., Any]]:
        """Return the graph and its compiled function, compiling it if that has not happened yet."""
        if self._made is None:
            graph = self._prepared.graph()
            function: Callable[..., Any] = graph
            if self._compiles:
                graph, function = self._prepared.compile()
            self._made = graph, function, _State(named_state(graph))
        graph, function, state = self._made
        state.restore()
        return graph, function

    def run(self, inputs: tuple[Any, ...]) -> Run:
        graph, function = self.function()
        return self._prepared.observe(graph, function, inputs)

    def execute(self, inputs: tuple[Any, ...]) -> Any:
        _, function = self.function() if self._made is None else self._made[:2]
        with self._prepared.modes(), without_other_ranks(self._prepared.repro):
            outputs = call_as_it_asks(function, inputs, {})
        return _with_backward(outputs, only_fwd=self._prepared.only_fwd)


class CallArtefact:
    """A whole call of the user's code: one copy of it, compiled, and called on inputs of its own.

    What the code keeps in plain Python between calls is its own affair, and is not compared.
    """

    def __init__(self, repro: Repro, phase: Phase, *, fp64: bool = True, compiles: bool = True) -> None:
        self._repro, self._phase, self._fp64, self._compiles = repro, phase, fp64, compiles
        self._trial = CallTrial.of(repro)

    @cached_property
    def _made(self) -> tuple[FreshCall, Callable[..., Any], _State]:
        call = self._trial.copied()
        function = compile_model(self._repro.compiler, call.function) if self._compiles else call.function
        return call, function, _State(call.state)

    def subject(self, inputs: tuple[Any, ...]) -> Subject:
        others = subject_of_call(replace(self._repro, inputs=inputs), self._phase, fp64=self._fp64)

        def eager(around: AbstractContextManager[Any]) -> Run:
            return replace(others.eager(around), python={})

        def compiled(around: AbstractContextManager[Any]) -> Run:
            with compilation(self._phase, around):
                return self.run(clone_inputs(inputs))

        return replace(others, eager=eager, compiled=compiled)

    def run(self, inputs: tuple[Any, ...]) -> Run:
        call, function, state = self._made
        state.restore()
        return replace(self._trial.observe(replace(call, inputs=inputs), function), python={})

    def execute(self, inputs: tuple[Any, ...]) -> Any:
        from torchrepro.bundle.user_calls import run_call

        call, function, _ = self._made
        with applied_modes(self._repro.ambient):
            outputs = run_call(call.graph, inputs, function)
        return _with_backward(outputs, only_fwd=self._repro.backward is False)
