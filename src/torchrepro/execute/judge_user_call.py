"""Judge a whole call of the user's code, capture included: through the public API against plain Python."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.bundle.provenance import owners
from torchrepro.bundle.user_calls import callee_of, run_call
from torchrepro.execute.compilers import compile_model
from torchrepro.execute.judge_repro import compilation, synchronise
from torchrepro.graph_text.printer import GraphText
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.execute import Run, named_state, observe_call
from torchrepro.judge.models import Phase, Subject
from torchrepro.judge.op_forms import Draws
from torchrepro.judge.reference import true_run
from torchrepro.nouns.repro import Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.state.snapshot import python_state
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.user_code.closure import forget_source
from torchrepro.user_code.graph_source import read_with_source, write_with_source
from torchrepro.user_code.settings import code_settings, without_settings


@dataclass(frozen=True, eq=False)
class FreshCall:
    """The call on copies of everything: code, modules and arguments that no other run has touched."""

    graph: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    earlier: tuple[tuple[Any, ...], ...]
    source: types.ModuleType

    @property
    def function(self) -> Callable[..., Any]:
        return callee_of(self.graph)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the modules that are called, passed or found by a global name."""
        found = named_state(self.graph)
        known = {id(tensor) for tensor in found.values()}
        for name, value in vars(self.source).items():
            if isinstance(value, torch.nn.Module):
                held = named_state(value)
                found |= {f"{name}.{path}": item for path, item in held.items() if id(item) not in known}
                known |= {id(tensor) for tensor in held.values()}
        return found

    @property
    def python(self) -> dict[str, Any]:
        """Plain data that the call may have changed; the globals are the call's own here."""
        return {
            **{f"globals.{name}": value for name, value in python_state(self.source).items()},
            **python_state(self.graph),
            **python_state(self.function),
        }


@dataclass(frozen=True, eq=False)
class CallTrial:
    """A repro of a whole call that can be run any number of times."""

    repro: Repro
    written: GraphText

    @classmethod
    def of(cls, repro: Repro) -> CallTrial:
        # Settings that are code stay as they are: no run changes them.
        written, _ = write_with_source(without_settings(repro, code_settings(repro).keys()))
        return cls(repro, written)

    @contextmanager
    def fresh(self) -> Iterator[FreshCall]:
        """Recreate the call from its text for the body: one run's side effects never reach the next."""
        call = self.copied()
        try:
            yield call
        finally:
            forget_source(call.source)

    def copied(self) -> FreshCall:
        """Return the call on copies that are kept."""
        inputs, earlier, constants = clone_inputs(
            (self.repro.inputs, self.repro.earlier, dict(self.written.constants))
        )
        graph, source = read_with_source(
            self.written.text, constants, self.written.source, owners(self.written.needs_trust)
        )
        return FreshCall(graph, inputs, earlier, source)

    def observe(self, call: FreshCall, function: Callable[..., Any]) -> Run:
        """Run the function or a compiled form of it once, after the calls that came before."""

        def run(*inputs: Any) -> Any:
            with applied_modes(self.repro.ambient):
                return run_call(call.graph, inputs, function)

        state, only_fwd = call.state, self.repro.backward is False
        if call.earlier:
            with same_randomness(capture_rng_state()):
                for inputs in call.earlier:
                    observe_call(run, inputs, {}, only_fwd=only_fwd, state=state)
        seen = observe_call(run, call.inputs, {}, only_fwd=only_fwd, state=state)
        return replace(seen, python=call.python)


def subject_of_call(repro: Repro, phase: Phase, *, fp64: bool) -> Subject:
    """Return the ways to run a call that are compared."""
    trial = CallTrial.of(repro)

    def eager(around: AbstractContextManager[Any]) -> Run:
        with trial.fresh() as call, around:
            return trial.observe(call, call.function)

    def compiled(around: AbstractContextManager[Any]) -> Run:
        with trial.fresh() as call, compilation(phase, around):
            return trial.observe(call, compile_model(repro.compiler, call.function))

    def truth(draws: Draws) -> tuple[Run, tuple[str, ...]]:
        with trial.fresh() as call:

            def observe(graph: Callable[..., Any], inputs: tuple[Any, ...], _: dict[str, Any]) -> Run:
                assert isinstance(graph, torch.fx.GraphModule)
                wide = replace(call, graph=graph, inputs=inputs)
                return trial.observe(wide, wide.function)

            return true_run(observe, call.graph, call.inputs, {}, draws)

    return Subject(eager, compiled, truth if fp64 else None)


def run_compiled(repro: Repro) -> Any:
    """Run the compiled call and return its outputs, unjudged."""
    with CallTrial.of(repro).fresh() as call, applied_modes(repro.ambient):
        compiled = compile_model(repro.compiler, call.function)
        outputs = run_call(call.graph, call.inputs, compiled)
        synchronise()
    return outputs


def detached(repro: Repro) -> Repro:
    """Copy the call with the user's code and data as they are now; it shares nothing with them."""
    trial = CallTrial.of(repro)
    call = trial.copied()
    notes = tuple(dict.fromkeys((*repro.notes, *trial.written.notes)))
    return replace(repro, graph=call.graph, inputs=call.inputs, earlier=call.earlier, notes=notes)
