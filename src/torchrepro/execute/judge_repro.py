"""Run a repro: prepare graph and inputs, compile with the compiler under test, compare with eager."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.execute.collectives import without_other_ranks
from torchrepro.execute.compilers import compile_graph, require_known, without_tokens
from torchrepro.graph_text.metadata import fake_inputs, restore_metadata
from torchrepro.judge.clone import clone_inputs, clone_module
from torchrepro.judge.execute import (
    Run,
    Storages,
    call_as_it_asks,
    named_state,
    observe_call,
    storages_only_read,
)
from torchrepro.judge.models import Judged, Phase, Phases, Subject, judge
from torchrepro.judge.op_forms import Draws
from torchrepro.judge.reference import is_stateless, run_graph_in_fp64, true_run, wide_bytes
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import AccuracyError, ReferenceUnavailable, TorchReproError
from torchrepro.nouns.repro import Frontend, Place, Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import applied_modes, applied_settings
from torchrepro.state.fake_run import inputs_written
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.generators import accelerators, capture_rng_state, is_initialised, same_randomness

SHARED_FROM = 1 << 28
"""Bytes of a graph's inputs from which those that it only reads are not copied for its runs in eager."""
WIDE_AT_ONCE = 1 << 26
"""Bytes of a graph's inputs in float64 up to which all are widened before it runs."""


@dataclass(frozen=True)
class Prepared:
    """A repro whose graph and inputs are ready to run; each run gets clones of both."""

    repro: Repro
    exact: bool = False
    """Whether each collective must have been recorded: only then its result is that of the real call."""

    def graph(self) -> torch.fx.GraphModule:
        """Return the graph as it was before any compiler touched it."""
        graph = clone_module(self.repro.graph)
        assert isinstance(graph, torch.fx.GraphModule)
        return graph.eval()

    def eager_graph(self) -> torch.fx.GraphModule:
        """Return the graph for a run in eager: itself, or a copy if a run could change it.

        Each copy has its Python code generated and compiled again.
        """
        return self.repro.graph if is_stateless(self.repro.graph) else self.graph()

    def inputs(self, keep: Collection[int] = ()) -> tuple[Any, ...]:
        """Return clones of the inputs; storages in `keep`, which are only read, are shared."""
        return clone_inputs(self.repro.inputs, keep=keep)

    def only_read(self) -> Storages:
        """Return the large storages that eager can share: a view keeps the whole storage under it alive."""
        inputs = self.repro.inputs
        if sum(each.nbytes() for each in storages_only_read(inputs, ()).values()) < SHARED_FROM:
            return {}
        written = inputs_written(self.repro)
        return {} if written is None else storages_only_read(inputs, written)

    @property
    def only_fwd(self) -> bool:
        return self.repro.place is Place.AFTER_AOT or self.repro.backward is False

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Enter the modes of the call. Graphs after AOT run without autograd, which is already traced."""
        below_autograd = self.repro.place is Place.AFTER_AOT
        with applied_modes(self.repro.ambient), torch.no_grad() if below_autograd else nullcontext():
            yield

    def compile(self) -> tuple[torch.fx.GraphModule, Callable[..., Any]]:
        """Compile a copy of the graph, dynamic where it was captured so; return the copy and the result."""
        graph, inputs, repro = self.graph(), self.inputs(), self.repro
        with self.modes():
            # Operators with graphs of their own (`while_loop`) need the symbols that capture always has.
            calls_graphs = any(isinstance(child, torch.fx.GraphModule) for child in graph.children())
            if repro.place is Place.AFTER_AOT or repro.symbols or calls_graphs:
                captures_scalars = repro.compiler.fullgraph or dynamo.config.capture_scalar_outputs
                scalars = captures_scalars or not calls_graphs
                fake_mode = restore_metadata(graph, inputs, repro.symbols, scalars=scalars)
                example = fake_inputs(graph)
                return graph, compile_graph(repro.compiler, repro.place, graph, fake_mode, example)
            return graph, compile_graph(repro.compiler, repro.place, graph, None, inputs)

    def observe(self, graph: torch.nn.Module, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Run:
        """Run the graph or a compiled form of it once, on the given objects themselves."""

        def call(*args: Any) -> Any:
            with self.modes():
                return call_as_it_asks(function, args, {})

        with without_other_ranks(self.repro, exact=self.exact):
            run = observe_call(call, inputs, {}, only_fwd=self.only_fwd, state=named_state(graph))
        return replace(run, outputs=without_tokens(self.repro.graph, run.outputs))

    def lead_up(self, graph: torch.nn.Module, function: Callable[..., Any]) -> None:
        """Repeat the calls that came before; the states of the generators stay as they were."""
        if self.repro.earlier:
            with same_randomness(capture_rng_state()):
                for inputs in self.repro.earlier:
                    self.observe(graph, function, clone_inputs(inputs))


def repro_common(repro: Repro) -> Prepared:
    """Check that a repro can be run at all: its compiler is known, its inputs fit its graph.

    After AOT nothing may be left in the module: parameters are inputs there.
    """
    require_known(repro.compiler)
    if repro.place is Place.AFTER_AOT and any(True for _ in repro.graph.parameters()):
        names = ", ".join(name for name, _ in repro.graph.named_parameters())
        raise TorchReproError(
            f"a graph after AOT has parameters of its own ({names})", next_step="pass them as inputs"
        )
    wanted = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    required = sum(not node.args for node in wanted)
    if not required <= len(repro.inputs) <= len(wanted):
        raise TorchReproError(
            f"the graph takes {len(wanted)} inputs, the repro has {len(repro.inputs)}",
            next_step="save it again",
        )
    return Prepared(repro)


def repro_run(
    repro: Repro,
    *,
    accuracy: bool = True,
    rule: Rule | None = None,
    require_fp64: bool = False,
) -> Any:
    """Run a repro in this process: the compiled function's own exception, or `AccuracyError` on a mismatch.

    Without `accuracy` the compiled function is only run, and its outputs are returned.
    """
    prepared = repro_common(repro)
    if not accuracy:
        with applied_settings(repro.ambient):
            if repro.place is Place.BEFORE_CAPTURE:
                from torchrepro.execute.judge_user_call import run_compiled

                return run_compiled(repro)
            _, function = prepared.compile()
            with prepared.modes(), without_other_ranks(repro):
                outputs = call_as_it_asks(function, prepared.inputs(), {})
                synchronise()
            return outputs
    judged = Judged()
    verdict = judge_repro(repro, rule=rule, require_fp64=require_fp64, judged=judged)
    if judged.raised is not None and verdict.fails:
        raise judged.raised
    if verdict.fails:
        raise AccuracyError(str(verdict), verdict)
    return verdict


def judge_repro(
    repro: Repro,
    *,
    rule: Rule | None = None,
    require_fp64: bool = False,
    fp64: bool = True,
    phase: Phase = lambda name: None,
    steady: bool = False,
    ask_rounding: bool = True,
    judged: Judged | None = None,
) -> Verdict:
    """Judge a repro in this process; a crash or a hang takes the process with it.

    It is judged as it was recorded, unless a rule is given. `steady`, `ask_rounding` and `judged` are those
    of `judge`. Where it has a probe, the verdict is the probe's.
    """
    if repro.probe is not None:
        from torchrepro.execute.probes.probe_repro import probe_repro

        return probe_repro(repro, rule=rule, fp64=fp64, phase=phase).verdict
    rule = rule or Rule(strict=repro.strict, tol=repro.tolerance)
    phase = Phases(phase)
    prepared = repro_common(repro)
    if repro.place is Place.BEFORE_CAPTURE:
        from torchrepro.execute.judge_user_call import subject_of_call

        subject = subject_of_call(repro, phase, fp64=fp64)
    else:
        subject = subject_of_prepared(prepared, phase, prepared.compile, fp64=fp64)
    rng = repro.ambient.rng or None
    with applied_settings(repro.ambient):
        return judge(
            subject,
            rule=rule,
            require_fp64=require_fp64,
            rng=rng,
            phase=phase,
            steady=steady,
            ask_rounding=ask_rounding,
            judged=judged,
        )


def subject_of_prepared(
    prepared: Prepared,
    phase: Phase,
    compile: Callable[[], tuple[torch.fx.GraphModule, Callable[..., Any]]],
    *,
    fp64: bool = True,
) -> Subject:
    """Return the ways to run a graph that are compared; `compile` may reuse an earlier compilation."""

    shared = prepared.only_read()

    def eager(around: AbstractContextManager[Any]) -> Run:
        graph, inputs = prepared.eager_graph(), prepared.inputs(shared)
        with around:
            prepared.lead_up(graph, graph)
            return prepared.observe(graph, graph, inputs)

    def compiled(around: AbstractContextManager[Any]) -> Run:
        with compilation(phase, around):
            graph, function = compile()
            phase("run")
            prepared.lead_up(graph, function)
            return prepared.observe(graph, function, prepared.inputs())

    return Subject(eager, compiled, (lambda draws: truth_of(prepared, draws, shared)) if fp64 else None)


def truth_of(prepared: Prepared, draws: Draws, keep: Collection[int] = ()) -> tuple[Run, tuple[str, ...]]:
    """Run a prepared graph in float64; return the run and notes on what was not ideal about it.

    Storages in `keep`, which are only read, are shared unless they are widened.

    A graph below autograd holds wide copies only of what the current op reads. So does one above it that is
    large and needs no gradients, unless it has gradients or transforms of its own: there, torch wants
    the dtype of a tensor and of its gradient to be the same.
    """
    repro = prepared.repro
    if repro.place is Place.AFTER_AOT:
        return _truth_by_op(prepared, draws)
    size = wide_bytes(value for value in repro.inputs if isinstance(value, torch.Tensor))
    large = prepared.only_fwd and size > WIDE_AT_ONCE and not named_state(repro.graph)
    if large and not any(word in repro.graph.code for word in ("autograd", "functorch", "requires_grad")):
        try:
            run, notes = _truth_by_op(prepared, draws)
        except ReferenceUnavailable:
            pass  # all inputs are widened below
        else:
            return run, (f"float64 op by op: all inputs at once would take {size >> 20} MiB", *notes)

    def observe(graph: Callable[..., Any], inputs: tuple[Any, ...], _: dict[str, Any]) -> Run:
        assert isinstance(graph, torch.nn.Module)
        return prepared.observe(graph, graph, inputs)

    return true_run(observe, repro.graph, repro.inputs, {}, draws, keep)


def _truth_by_op(prepared: Prepared, draws: Draws) -> tuple[Run, tuple[str, ...]]:
    repro = prepared.repro
    around = nullcontext if repro.place is Place.AFTER_AOT else prepared.modes
    with without_other_ranks(repro, exact=prepared.exact):
        reference = run_graph_in_fp64(repro.graph, repro.inputs, draws=draws, around=around)
    after = tuple(reference.mutated.get(index, value) for index, value in enumerate(repro.inputs))
    return Run(outputs=without_tokens(repro.graph, reference.value), inputs=after), reference.notes


def synchronise() -> None:
    """Wait for the device, so that an asynchronous fault belongs to the call that caused it."""
    for kind in accelerators():
        if is_initialised(kind):
            torch.accelerator.synchronize()


@contextmanager
def compilation(phase: Phase, around: AbstractContextManager[Any]) -> Iterator[None]:
    """Run the compiled side inside `around`, and wait for the device at the end.

    Reports "compile" whenever a compilation begins, lazily or in backward, and "run" when it ends.
    """

    def start(args: Any) -> None:
        phase("compile")

    def end(args: Any) -> None:
        phase("run")

    dynamo.callback_handler.register_start_callback(start)
    dynamo.callback_handler.register_end_callback(end)
    try:
        with around:
            yield
            synchronise()
    finally:
        dynamo.callback_handler.remove_start_callback(start)
        dynamo.callback_handler.remove_end_callback(end)


def load_for_job(payload: dict[str, Any], phase: Phase) -> Repro:
    """Load the bundle of a job; trusted code may be in the working directory, as for `python script.py`."""
    from torchrepro.bundle.load import load_verified

    phase("load")
    trusted = tuple(payload.get("trusted", ()))
    if trusted:
        sys.path.insert(0, os.getcwd())
    return load_verified(Path(payload["bundle"]), trusted=trusted)


def check(payload: dict[str, Any], phase: Phase) -> Any:
    """Judge a bundle, given as plain data: a job for a separate process."""
    repro = load_for_job(payload, phase)
    if payload.get("frontend") is not None:
        compiler = replace(repro.compiler, frontend=Frontend(payload["frontend"]))
        repro = replace(repro, compiler=compiler)
    strict, tolerance = payload.get("strict", False), payload.get("tolerance")
    rule = Rule(strict=strict, tol=tolerance) if strict or tolerance is not None else None
    from torchrepro.execute.generate_code import reporting_code

    with reporting_code(repro, phase) if payload.get("code") else nullcontext():
        verdict = judge_repro(repro, rule=rule, fp64=payload.get("fp64", True), phase=phase)
    return msgspec.to_builtins(verdict.with_notes(*repro.notes))
