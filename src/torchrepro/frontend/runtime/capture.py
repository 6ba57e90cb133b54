"""Capture: from a frame to a region. Trace, restart where that fails, compile, write the code around it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torchrepro.frontend.bytecode.flow import live_before
from torchrepro.frontend.bytecode.program import Program, program_of
from torchrepro.frontend.bytecode.resume import why_not_enterable
from torchrepro.frontend.codegen.effects import Effects
from torchrepro.frontend.codegen.objects import CannotRebuild
from torchrepro.frontend.codegen.rebuild import Rebuilder, RegionText, compile_region, frame_state
from torchrepro.frontend.codegen.writer import Writer
from torchrepro.frontend.graph_breaks import Break, BreakKind, BreakReason, Where, short_name
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import ObjectCount, SharedStorage
from torchrepro.frontend.interpreter.frame import where_of
from torchrepro.frontend.runtime.cache import Sources
from torchrepro.frontend.runtime.faults import with_faults
from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.source import FrameState
from torchrepro.frontend.trace.fakes import backward_reason_of
from torchrepro.frontend.trace.recorder import Captured
from torchrepro.frontend.trace.tracer import (
    Diverged,
    Failed,
    Failure,
    Returned,
    SpeculationLog,
    Stop,
    Stopped,
    Tracer,
)
from torchrepro.judge.execute import is_boxed
from torchrepro.nouns.errors import TorchReproError
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    guards: GuardFunction
    code: RegionText
    start: Where
    captured: Captured
    inlined: Mapping[Where, int]
    """Functions that were inlined in it, and how often each."""
    entry: int = 0
    """Index of the instruction that it begins at; 0: at the start of the function."""
    end: int | None = None
    """Index of the instruction at which Python continues, in the frame that the region gives; None where the
    function has returned, and the region gives its value."""
    finish: bool = False
    """Whether Python runs all the rest of the function, and not one instruction only."""
    failure: Failure | None = None
    """Why the region ends there."""
    changing: Sources = frozenset()
    """Numbers that it does not read."""


RECURSION = 10_000
"""Python's own limit while tracing; the depth of the user's calls is limited by `Calls.max_depth`."""

ATTEMPTS = 40
"""How often one frame is traced before Python runs all of it."""


class CaptureError(TorchReproError):
    """A function was to be captured as one graph and cannot be."""


def not_whole(function: types.FunctionType, failure: Failure) -> CaptureError:
    """Return the error for a function that was to be one graph."""
    where = f"{failure.where}, called at {failure.frames[0]}" if len(failure.frames) > 1 else failure.where
    return CaptureError(
        f"{short_name(function.__qualname__)} is not one graph: at {where}: {failure.reason.text}",
        next_step=failure.reason.hint or "without fullgraph=True Python runs this place",
    )


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raise the recursion limit for the body: an inlined call takes several of the interpreter's calls."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@dataclass(slots=True, eq=False)
class Capture:
    """From an instruction of a function to the region that begins there."""

    function: types.FunctionType
    index: int
    state: FrameState
    settings: Settings
    changing: Sources = frozenset()
    log: SpeculationLog = field(default_factory=SpeculationLog)
    finish: bool = False
    """Whether Python runs the function to its end from the break on."""
    stride: int = 1

    @property
    def program(self) -> Program:
        return program_of(self.function.__code__)

    def run(self) -> Region:
        """Return the region, compiled."""
        for _ in range(ATTEMPTS):
            region = self._attempt()
            if region is not None:
                return region
        self._give_up(BreakReason(BreakKind.UNSUPPORTED, f"no region after {ATTEMPTS} attempts"))
        region = self._attempt()
        assert region is not None
        return region

    def _attempt(self) -> Region | None:
        """Trace once; return None where it has to be repeated with the updated log."""
        tracer = Tracer(self.function, self.log, self.changing)
        try:
            return self._attempt_with(tracer)
        finally:
            tracer.forget()

    def _attempt_with(self, tracer: Tracer) -> Region | None:
        with closing(tracer), tracer.recorder.active(), _deep_recursion():
            try:
                outcome = tracer.trace(self.index, self.state)
            except Diverged as error:
                self._give_up(BreakReason(BreakKind.UNSUPPORTED, str(error)))
                return None
            if isinstance(outcome, Failed):
                self.step_graph_break(outcome.failure)
                return None
            try:
                rebuilder, result = self._rebuild(tracer, outcome)
                if tracer.recorder.shows_choice(tracer.values.outputs):
                    self.log = SpeculationLog(exact=True)
                    return None
                captured = tracer.recorder.finish(tracer.values.outputs)
                if captured.hidden_sharing:
                    told = "the function writes to memory that another of its inputs shares"
                    self._give_up(BreakReason(BreakKind.UNSUPPORTED, told))
                    return None
            except (CannotRebuild, Break) as error:  # a break: a tensor that is not in the graph
                self._break_earlier(BreakReason(BreakKind.REBUILD, str(error)), outcome)
                return None
        ranks, graph = self.settings.ranks, captured.graph_module
        if ranks and not ranks.agree_on(self.log, self.function, self.index, graph, finish=self.finish):
            return None
        try:
            return self.compile_subgraph(tracer, outcome, rebuilder, result, captured)
        except Exception as error:
            reason = backward_reason_of(error)
            if reason is None:
                raise
            self._give_up(reason)
            return None

    # Breaks

    def step_graph_break(self, failure: Failure) -> None:
        """Record where the region ends: before the instruction of the outermost frame that failed."""
        raises = failure.reason.kind is BreakKind.RAISES
        if self.settings.fullgraph and not raises:
            raise not_whole(self.function, failure)
        position = self.log.position - 1
        # With fullgraph Python only runs the function to raise the user's own error.
        self.finish = self.finish or failure.reason.frames or self.settings.fullgraph
        while position and why_not_enterable(self.program, self.log.path[position]) is not None:
            # In a handler the stack holds an exception, which cannot be restored: Python has to raise it.
            self.finish = True
            position -= 1
        self.log.failures[self.log.stop_at(position)] = failure

    def _break_earlier(self, reason: BreakReason, outcome: Any) -> None:
        """End the region earlier, before a value was made that lives across its end and cannot be rebuilt."""
        where = outcome.failure.where if isinstance(outcome, Stopped) else self._start()
        last = self.log.position - (1 if isinstance(outcome, Stopped) else 0)
        position = last - self.stride
        self.stride *= 2
        while position > 0 and why_not_enterable(self.program, self.log.path[position]) is not None:
            position -= 1
        if position <= 0 or self.settings.fullgraph:
            self._give_up(reason, where)
        else:
            end = where_of(self.program, self.log.path[position])
            failure = Failure(reason, where, inside=True, frames=(end,))
            self.log.failures = {self.log.stop_at(position): failure}

    def _give_up(self, reason: BreakReason, where: Where | None = None) -> None:
        """Let Python run the function from where this region would have begun."""
        self.finish = True
        failure = Failure(reason, where or self._start(), frames=(self._start(),))
        if self.settings.fullgraph:
            raise not_whole(self.function, failure)
        self.log = SpeculationLog(failures={Stop(self.index, 1): failure})

    def _start(self) -> Where:
        return where_of(self.program, self.index)

    # Regions

    def _rebuild(self, tracer: Tracer, outcome: Returned | Stopped) -> tuple[Rebuilder, str]:
        """Write the code for what is live at the end and what was changed; return also the result's text."""
        if any(generator.must_be_closed for generator in tracer.generators):
            raise CannotRebuild("a generator that has begun, and must be closed")
        writer = Writer(tracer.values.kept)
        rebuilder = Rebuilder(tracer.values, writer)
        effects = Effects(rebuilder)
        try:
            if isinstance(outcome, Stopped):
                frame = outcome.frame
                live = live_before(self.program, frame.index)
                seen = outcome.failure.reason.frames
                kept = {name: value for name, value in frame.locals.items() if seen or name in live}
                result = frame_state(rebuilder, kept, frame.cells, frame.stack)
            else:
                result = rebuilder.expression(outcome.value)
            effects.write_all()
        finally:
            rebuilder.forget()
        return rebuilder, result

    def compile_subgraph(
        self,
        tracer: Tracer,
        outcome: Returned | Stopped,
        rebuilder: Rebuilder,
        result: str,
        captured: Captured,
    ) -> Region:
        """Compile the graph and write the code around it."""
        # Distinct objects must stay distinct, and shared memory shared.
        guards, identities = tracer.values.guards, tracer.values.identities()
        if len(identities) > 1:
            guards.add(ObjectCount(identities[0], len(identities), others=tuple(identities[1:])))
        if captured.mutated_inputs and len(captured.inputs) > 1:
            guards.add(SharedStorage.of(*zip(*captured.inputs, strict=True)))
        lasting = captured.without_data()
        graph = self.compile_and_call_fx_graph(captured, lasting, tracer.protected)
        modes = captured.end_state and f"{rebuilder.writer.held(captured.end_state, 'modes')}.apply()"
        sources = [source for source, _ in captured.inputs]
        ambient = [modes] if modes else []
        code = compile_region(self.function.__qualname__, rebuilder, result, graph, sources, ambient)
        stopped = outcome if isinstance(outcome, Stopped) else None
        return Region(
            guards=GuardFunction.of(guards, tracer.values.kept),
            code=code,
            start=self._start(),
            captured=lasting,
            inlined=dict(tracer.inlined),
            entry=self.index,
            end=None if stopped is None else stopped.frame.index,
            finish=self.finish,
            failure=None if stopped is None else stopped.failure,
            changing=self.changing,
        )

    def compile_and_call_fx_graph(
        self, captured: Captured, lasting: Captured, protected: bool
    ) -> Callable[..., Sequence[Any]] | None:
        """Return the compiled graph as generated code calls it; None where nothing was recorded."""
        if captured.op_count == 0:
            return None
        inputs = [real for _, real in captured.inputs]
        state = capture_rng_state()
        try:
            compiled = self.settings.compile(captured.graph_module, inputs)
        finally:
            restore_rng_state(state)
        run = (lambda *args: compiled(list(args))) if is_boxed(compiled) else compiled
        return with_faults(run, lasting, protected=protected)
