"""Judge a user's whole model, capture included: compiled through the public API against plain eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.execute.compilers import compile_model, require_known
from torchrepro.execute.factory import Built, Factory, call_context, load_factory
from torchrepro.execute.judge_repro import phases_of_compilation, synchronise
from torchrepro.judge.execute import Run, named_state, observe_call
from torchrepro.judge.models import Phase, Phases, Subject, judge, true_run
from torchrepro.judge.randomness import Draws
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.request import ModelRequest
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.side_effects import python_state


@dataclass(frozen=True)
class ModelTrial:
    """A loaded request: it builds, calls and observes the model in each of the ways that are compared."""

    request: ModelRequest
    factory: Factory
    compiler: Compiler
    notes: tuple[str, ...] = ()

    def observe(self, built: Built, function: Any) -> Run:
        """One call of `function`, which is the built model or a compiled form of it."""
        options = self.factory.options

        def call(*args: Any, **kwargs: Any) -> Any:
            with call_context(options, self.request.amp, self.device_type):
                out = options.call(function, args) if options.call else function(*args, **kwargs)
                return options.post(built.model, out, args) if options.post else out

        model = built.model
        state = named_state(model) if isinstance(model, torch.nn.Module) else {}
        run = observe_call(call, built.args, built.kwargs, only_fwd=self.only_fwd, state=state)
        if self.request.backward and not any(gradient is not None for gradient in run.gradients.values()):
            raise TorchReproError(
                f"{self.request.target}: no output depends on anything that needs gradients",
                next_step="leave out --backward",
            )
        return replace(run, python=python_state(model))

    def record_call(self, backend: Any) -> None:
        """Compile a fresh model with a recording backend and run it forward once."""
        built = self.factory.fresh()
        compiled = compile_model(replace(self.compiler, options={}, mode=None), built.model, backend=backend)
        self.observe(built, compiled)

    @property
    def tolerance(self) -> float | None:
        """That of the command line, else that of the file."""
        asked = self.request.tolerance
        return asked if asked is not None else self.factory.options.tolerance

    @property
    def only_fwd(self) -> bool:
        wanted = self.request.backward if self.request.backward is not None else self.factory.options.grad
        return wanted is False or self.factory.options.no_grad

    @property
    def device_type(self) -> str:
        return torch.device(self.request.device or "cpu").type


def load_trial(request: ModelRequest) -> ModelTrial:
    """Load the user's function and settle what its file says about compiling."""
    factory = load_factory(request.target, device=request.device, backward=request.backward)
    in_file = dict(factory.options.compile)
    compiler = request.compiler
    compiler = replace(
        compiler,
        options={**in_file.pop("options", {}), **compiler.options},
        mode=compiler.mode or in_file.pop("mode", None),
        dynamic=in_file.pop("dynamic", None) if compiler.dynamic is None else compiler.dynamic,
        fullgraph=in_file.pop("fullgraph", compiler.fullgraph),
    )
    in_file.pop("backend", None)
    if in_file:
        raise TorchReproError(
            f"{request.target}: COMPILE names {', '.join(map(repr, in_file))}",
            next_step="torchrepro passes on options, mode, dynamic and fullgraph",
        )
    require_known(compiler)
    factory, note = factory.steady()
    return ModelTrial(request, factory, compiler, (note,) if note else ())


def judge_model(request: ModelRequest, phase: Phase = lambda name: None) -> Verdict:
    """The verdict on a user's model in this process."""
    phase = Phases(phase)
    phase("build")
    trial = load_trial(request)

    def eager(around: AbstractContextManager[Any]) -> Run:
        built = trial.factory.fresh()
        with around:
            return trial.observe(built, built.model)

    def compiled(around: AbstractContextManager[Any]) -> Run:
        built = trial.factory.fresh()
        with phases_of_compilation(phase), around:
            run = trial.observe(built, compile_model(trial.compiler, built.model))
            synchronise()
            return run

    def truth(draws: Draws) -> tuple[Run, tuple[str, ...]]:
        built = trial.factory.fresh()

        def observe(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
            return trial.observe(Built(model, args, kwargs), model)

        return true_run(observe, built.model, built.args, built.kwargs, draws)

    verdict = judge(
        Subject(eager, compiled, truth if request.fp64 else None),
        rule=Rule(strict=request.strict, tol=trial.tolerance, check_stride=request.check_stride),
        phase=phase,
    )
    return verdict.with_notes(*trial.notes)
