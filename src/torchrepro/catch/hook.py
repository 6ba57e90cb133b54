"""The hook around a compiler function and around what it returns.

A compiler may be given fake tensors, so nothing can be run when it is called: checks are deferred to calls of
the compiled function (`deferred_for_real_inputs`). If nothing fails, levels 1 and 2 cost a call one more
Python frame and a copy of the generator's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.process_groups import is_distributed
from torchrepro.bundle.read import CAPTURED, GENERATED
from torchrepro.catch.caught import HANG_SECONDS
from torchrepro.catch.checker import Before, Checker, verdict_on_damaged
from torchrepro.catch.compiled_target import enclosing_calls
from torchrepro.catch.pending_bundle import PendingBundle
from torchrepro.catch.session import Sampler, Session, is_checking, looking_away
from torchrepro.catch.settings import OnMismatch
from torchrepro.catch.snapshot import Snapshot
from torchrepro.cut.hints import working_on
from torchrepro.engine.check_bundle import eager_fails
from torchrepro.execute.collectives import CollectiveRecord, recorded_collectives, without_other_ranks
from torchrepro.execute.judge_repro import Prepared, synchronise
from torchrepro.judge.execute import call_as_it_asks, innermost, is_out_of_memory, verdict_of
from torchrepro.nouns.errors import AccuracyError, RankFailed, TorchReproError, say
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Stage, Verdict
from torchrepro.script.save_bundle import Members, finished, write_what_can_be
from torchrepro.torch_api.generators import (
    capture_rng_state,
    device_rng_states,
    is_capturing,
    is_device_fault,
    quick_rng_state,
    same_randomness,
)
from torchrepro.torch_api.inductor import seeing_code

CompilerFn = Callable[..., Any]
Rng = Mapping[str, torch.Tensor]

_CAUGHT = "_torchrepro_caught"
"""Attribute of an exception: the list of bundles that it was kept in. Inductor raises the error of a kernel
again, the same object, when the kernel is compiled again: maybe in another test."""


def watch_compiler(
    compiler_fn: CompilerFn,
    session: Session,
    take: Callable[[torch.fx.GraphModule, Mapping[str, Any]], Snapshot],
) -> CompilerFn:
    """Watch a compiler function `(graph, example_inputs, **kwargs) -> callable`.

    `take` makes the snapshot of a graph from it and from the compiler's keyword arguments.
    """

    @wraps(compiler_fn, updated=())
    def debug_wrapper(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        if is_checking():
            return compiler_fn(graph, example_inputs, **kwargs)
        watched = session.shielded(
            "keep a graph", lambda: WatchedGraph(session, take(graph, kwargs), example_inputs)
        )
        if watched is None:
            return compiler_fn(graph, example_inputs, **kwargs)
        compiled = watched.compile(lambda: compiler_fn(graph, example_inputs, **kwargs))
        return deferred_for_real_inputs(compiled, watched)

    return debug_wrapper


def deferred_for_real_inputs(compiled: Callable[..., Any], watched: WatchedGraph) -> Callable[..., Any]:
    """Return the compiled function with its calls watched according to the level.

    Below AOT its flag says whether it is boxed. Dynamo never makes boxed calls, though the flag of an inner
    function may have been copied to the function that it calls.
    """
    call = watched.call if watched.session.settings.level >= 3 else watched.call_passively
    if watched.snapshot.place is Place.AFTER_AOT and getattr(compiled, "_boxed_call", False):
        return _Boxed(compiled, call)

    def run_watched(*args: Any) -> Any:
        return call(compiled, args, args)

    return run_watched


class _Boxed:
    """A compiled function that takes one list and may empty it, to free its inputs while it runs."""

    def __init__(self, compiled: Any, call: Callable[..., Any]) -> None:
        self._boxed_call = True  # on the instance: torch copies `__dict__`
        self._compiled = compiled
        self._call = call

    def __call__(self, args: list[Any]) -> Any:
        return self._call(self._compiled, (args,), args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


class WatchedGraph:
    """One graph that is compiled, and the calls of the compiled function."""

    def __init__(self, session: Session, snapshot: Snapshot, example_inputs: Sequence[Any]) -> None:
        self.session = session
        self.snapshot = snapshot
        self._example = snapshot.concrete(example_inputs)
        self._calls = 0
        self._seconds = 0.0
        """What compiling it took."""
        self._number = session.graphs
        session.graphs += 1
        self._sampler = Sampler(session)
        self._pending = PendingBundle(session, snapshot)
        self._communicates = snapshot.collective or any(map(is_distributed, example_inputs))
        self._checker: Checker | None = None
        self._generated: list[str] = []
        """What the compiler generates, where the graph itself cannot be kept."""

    def compile(self, compile_fn: Callable[[], Any]) -> Any:
        """Call the compiler. Its exception is raised unchanged, after a bundle has been written."""
        self.session.join_ranks()
        if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in self._example):
            self.session.shielded("start a search process", self.session.stand_by)
        rng = self.snapshot.ambient.rng
        self._prepare(self._example, rng, "compile")
        generated = seeing_code(self._generated.append) if self.snapshot.written.missing else nullcontext()
        try:
            started = time.monotonic()
            with self._watching(self._example, rng, compiling=True), generated:
                compiled = compile_fn()
            self._seconds = time.monotonic() - started
        finally:
            # Real inputs are not kept alive. Those of AOT are fake, and the only record of inputs that a
            # boxed function frees.
            if self.snapshot.place is not Place.AFTER_AOT:
                self._example = ()
        self._keep_step("compiled")
        return compiled

    def call_passively(
        self, compiled: Callable[..., Any], args: tuple[Any, ...], inputs: Sequence[Any]
    ) -> Any:
        """Call at level 1 or 2: copy nothing but the generator's state, keep nothing alive."""
        rng = quick_rng_state()
        self._calls += 1
        try:
            outputs = compiled(*args)
        except Exception as exc:
            if self.session.active and not is_checking():
                self._record(exc, tuple(inputs), rng, compiling=False)
            raise
        if self._calls == 1:
            self._keep_step("called")
        return outputs

    def call(self, compiled: Callable[..., Any], args: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        """Call at level 3 or 4: write the bundle before the call; at level 4 check the result after it.

        At level 4 only before the first call, unless it is to be crash-safe: the copies of a check are enough
        to save a call that raises or that gives wrong numbers.
        """
        if is_checking() or not self.session.active or is_capturing():
            return compiled(*args)
        self._calls += 1
        settings = self.session.settings
        checkable = settings.level >= 4 and self._is_complete()
        checked = checkable and self._sampler.take()
        if checkable and not checked:
            return compiled(*args)
        rng = device_rng_states()
        started = time.monotonic()
        held = tuple(inputs) if checked else ()
        self._checker = self._checker or Checker(compiled)
        copy = partial(self._before, self._checker, held)
        before = self.session.shielded("copy the inputs", copy) if checked else None
        if settings.level == 3 or settings.crash_safe or self._calls == 1:
            self._prepare(inputs, rng, "run")
        else:
            self._pending.discard()
        spent = time.monotonic() - started
        record = CollectiveRecord()
        recorded = self._communicates and before is not None
        with self._watching(before.inputs if before is not None else inputs, rng, compiling=False):
            with recorded_collectives(record) if recorded else nullcontext():
                outputs = compiled(*args)
            synchronise()
        if self._calls == 1:
            self._keep_step("called")
        if before is not None:
            started = time.monotonic()
            try:
                self._check(self._checker, before, rng, outputs, held, record)
            finally:
                self._sampler.spent(spent + time.monotonic() - started)
        return outputs

    def _is_complete(self) -> bool:
        """Return whether the graph can be run again; say so once if it cannot."""
        if self._calls == 1 and not self.snapshot.complete:
            missing = self.snapshot.as_data[0].missing[0]
            say(f"a graph is not compared with eager, because it could not be kept: it lacks {missing}")
        return self.snapshot.complete

    def _prepare(self, inputs: Sequence[Any], rng: Rng, phase: str) -> None:
        if self.session.settings.level >= 3:
            write = partial(self._pending.update, inputs, rng, phase)
            self.session.shielded("write the bundle ahead", write)

    @contextmanager
    def _watching(self, inputs: Sequence[Any], rng: Rng, *, compiling: bool) -> Iterator[None]:
        """Save a bundle if the body raises, or is interrupted after `HANG_SECONDS`."""
        started = time.monotonic()
        try:
            yield
        except Exception as exc:
            self._seconds += time.monotonic() - started
            self._record(exc, tuple(inputs), rng, compiling=compiling)
            raise
        except KeyboardInterrupt:
            seconds = time.monotonic() - started
            if seconds >= HANG_SECONDS:
                doing = "compiling" if compiling else "running the compiled function"
                summary = f"interrupted after {seconds:.0f} s ({doing})"
                verdict = Verdict(Kind.HANG, Stage.BACKEND, summary=summary, seconds=seconds)
                keep = partial(self._keep, verdict, tuple(inputs), rng)
                self.session.shielded("write a bundle", keep, from_interrupts=True)
            raise
        finally:
            self.session.shielded("finish the bundle", self._pending.idle)

    def _record(self, exc: Exception, inputs: tuple[Any, ...], rng: Rng, *, compiling: bool) -> None:
        """Record a failure. Whatever goes wrong meanwhile, the user's exception is what is raised."""
        failed = partial(self._failed, exc, inputs, rng, compiling=compiling)
        self.session.shielded("record a failure", failed, from_interrupts=True)

    def _failed(self, exc: Exception, inputs: tuple[Any, ...], rng: Rng, *, compiling: bool) -> None:
        links = (exc, innermost(exc), exc.__cause__)
        if _is_control_flow(exc) or any(getattr(link, _CAUGHT, None) is self.session.kept for link in links):
            return
        shielded = partial(self.session.shielded, from_interrupts=True)
        verdict = verdict_of(exc, compiling=True if compiling else None)
        doing = shielded("name what failed", lambda: working_on(innermost(exc)))
        verdict = replace(verdict.with_notes(doing) if doing else verdict, seconds=self._seconds)
        with looking_away():
            fails_too = partial(self._eager_fails_too, inputs, rng, exc)
            if not compiling and shielded("run the graph eagerly", fails_too):
                return
            path = shielded("write a bundle", lambda: self._keep(verdict, inputs, rng))
            if path is not None and is_device_fault(innermost(exc)):
                path = shielded("run the graph eagerly elsewhere", partial(self._unless_eager_fails, path))
            shielded("search", lambda: self.session.search(path))
            step = self._event("compiled" if compiling else "called")
            shielded("tell the other ranks", lambda: self.session.tell_ranks(verdict, path, step))
        for link in links[:2]:
            with suppress(AttributeError):  # it has slots: at worst the same failure gets a second bundle
                setattr(link, _CAUGHT, self.session.kept)

    def _unless_eager_fails(self, bundle: Path) -> Path | None:
        """Remove the bundle of a device's fault if a fresh process shows the fault without the compiler."""
        if not eager_fails(bundle):
            return bundle
        say("the device fails without the compiler, too: no bundle is kept")
        self.session.drop(bundle)
        return None

    def _event(self, step: str) -> str:
        """Return the name of a step that all ranks reach in the same order; empty for other steps.

        Those of autograd's graphs, and later calls, have no fixed order.
        """
        expected = self.snapshot.place is Place.AFTER_CAPTURE and (step == "compiled" or self._calls == 1)
        return f"graph {self._number} {step}" if expected else ""

    def _keep_step(self, step: str) -> None:
        """Wait until all ranks have reached the step, if there are several."""
        event = self._event(step)
        if event and self.session.active:
            self.session.keep_step(event)

    def _keep(self, verdict: Verdict, inputs: tuple[Any, ...], rng: Rng) -> Path | None:
        """Save a bundle, with the inputs from before the call if they were kept, else as they are now."""

        def members() -> Members:
            if self._pending.path is None:
                return self._members(verdict, inputs, rng)
            return finished(self._pending.path, verdict, earlier=len(self._earlier(())))

        return self._keep_complete(members, verdict, backward=False)

    def _keep_judged(self, repro: Repro, verdict: Verdict) -> Path | None:
        """Save a bundle of a call that was checked."""

        def members() -> Members:
            written, plain = write_what_can_be(repro)
            return self.session.members(plain, verdict, written)

        return self._keep_complete(members, verdict, backward=repro.backward)

    def _keep_complete(
        self, make: Callable[[], Members], verdict: Verdict, *, backward: bool | None
    ) -> Path | None:
        """Save a bundle; if it would be incomplete, the whole call instead, if that is complete."""

        def save(path: Path) -> Path:
            members = make()
            if members.manifest.missing:
                whole_call = partial(self._whole_call, verdict, members.manifest.missing[0], backward)
                members = self.session.shielded("save the whole call", whole_call) or members
                generated = {GENERATED: "\n\n".join(self._generated).encode()} if self._generated else {}
                members = replace(members, optional={**members.optional, **generated})
            return members.write(path)

        return self.session.keep_as(save, verdict, self.snapshot.key)

    def _whole_call(self, verdict: Verdict, missing: str, backward: bool | None) -> Members | None:
        """Return the bundle of a compiled call in which the graph failed; None if all are incomplete, too."""
        reason = f"the graph that failed could not be kept, it lacks {missing}; this is the call around it"
        for call in enclosing_calls():
            repro = call.repro(self.snapshot.ambient)
            notes = (*repro.notes, reason, "its arguments are as the failed call left them")
            repro = replace(repro, backward=backward, origin=self.snapshot.origin, notes=notes)
            written, plain = write_what_can_be(repro)
            members = self.session.members(plain, verdict, written)
            if not members.manifest.missing:
                captured = {CAPTURED: self.snapshot.written.text.encode()}
                return replace(members, optional={**members.optional, **captured})
        return None

    def _members(self, verdict: Verdict, inputs: tuple[Any, ...], rng: Rng) -> Members:
        notes = []
        if not inputs and self._example:
            inputs = self._example
            notes.append("the failed call had freed its inputs; level 3 keeps their data")
        if self.snapshot.mutates and self.session.settings.level < 3:
            notes.append(
                "inputs that the graph writes to are as the failed call left them; level 3 keeps them"
            )
        written, repro = self.snapshot.data_with(inputs, rng, earlier=self._earlier(inputs), notes=notes)
        return self.session.members(repro, verdict, written)

    def _eager_fails_too(self, inputs: tuple[Any, ...], rng: Rng, exc: Exception) -> bool:
        """Return whether eager raises on these inputs too, so that the compiler is not the culprit.

        It is not tested after a fault of the device, where nothing can run, and out of memory, which says
        nothing about eager. Collectives, in which the other ranks would not take part, return what they would
        if all ranks had the same input.
        """
        if is_out_of_memory(exc) or is_device_fault(innermost(exc)):
            return False
        if not self.snapshot.complete:
            return False  # there is no graph to be run
        if self._pending.path is not None:
            prepared = Prepared(self._pending.load())
        elif inputs or not self._example:
            prepared = Prepared(self.snapshot.repro(inputs, rng=rng))
        else:
            return False  # the inputs are gone
        # Outside of the `try`: a failure here is a bug of torchrepro, not of the graph.
        graph, arguments = prepared.graph(), prepared.inputs()
        try:
            alone = without_other_ranks(prepared.repro)
            with same_randomness(capture_rng_state()), prepared.modes(), alone:
                call_as_it_asks(graph, arguments, {})
        except TorchReproError:
            return False  # it cannot be run here
        except Exception as eager:
            return not is_out_of_memory(eager)
        return False

    def _earlier(self, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        """Return the calls before the failed one, which may need them to warm up, to record or to recompile.

        Their inputs are not kept; calls with the failing inputs bring the compiled code to the same state.
        """
        return (inputs,) * min(self._calls - 1, 2)

    def _before(self, checker: Checker, inputs: tuple[Any, ...]) -> Before:
        with looking_away():
            return checker.before(self.snapshot.repro(inputs))

    def _check(
        self,
        checker: Checker,
        before: Before,
        rng: Rng,
        outputs: Any,
        after: Any,
        record: CollectiveRecord,
    ) -> None:
        session = self.session

        def check() -> tuple[Repro, Verdict]:
            if record.unknown:
                raise TorchReproError(
                    f"the results of {record.unknown} cannot be recorded", next_step="the call is not checked"
                )
            inputs, damaged = before.inputs, before.damaged()
            repro = self.snapshot.repro(
                inputs, rng=rng, earlier=self._earlier(inputs), collectives=record.collectives
            )
            if damaged:
                note = "inputs that the compiled function wrote to are as it left them"
                known = self._pending.path is not None
                repro = self._pending.load() if known else replace(repro, notes=(*repro.notes, note))
                return repro, verdict_on_damaged(damaged)
            repro, verdict = checker.check(repro, outputs, after)
            return repro, replace(verdict, seconds=self._seconds + verdict.seconds)

        with looking_away():
            found = session.shielded("check a call", check)
            if found is None or not found[1].fails:
                return
            path = session.shielded("write a bundle", lambda: self._keep_judged(*found))
            if path is not None:
                say(f"{found[1]}\n  bundle  {path}")
            session.shielded("search", lambda: session.search(path))
        if session.settings.on_mismatch is OnMismatch.RAISE:
            session.tell_ranks(found[1], session.kept[-1] if session.kept else None)
            raise AccuracyError(str(found[1]), found[1])


def _is_control_flow(exc: BaseException) -> bool:
    """Return whether an exception is torch's control flow, or the failure of another rank.

    Torch raises to trace again, to skip a frame, to break the graph and to stop recomputing. Another rank has
    its own bundle.

    Checked on torch 2.11 to 2.15 (`RestartAnalysis`, `SkipFrame`, `exceptions_allowed_to_be_fallback`,
    `_StopRecomputationError`).
    """
    from torchrepro.torch_api.dynamo import StopRecomputation
    from torchrepro.torch_api.dynamo import exc as dynamo

    restarts = (dynamo.RestartAnalysis, dynamo.SkipFrame, StopRecomputation)
    kinds = (*restarts, *dynamo.exceptions_allowed_to_be_fallback)
    return isinstance(exc, kinds) or isinstance(innermost(exc), RankFailed)
