"""`explain_capture`: call a function once, captured, and explain how the call became graphs.

`explain_model` does so for a user's model in a fresh process, and checks that it agrees with Python.
"""

from __future__ import annotations

import linecache
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec
import torch
from bytecode.instr import InstrLocation

from torchrepro.execute.compilers import backend_function
from torchrepro.execute.user_model import load_trial
from torchrepro.frontend.graph_breaks import Where, short_name
from torchrepro.frontend.guards.constants import shown_source
from torchrepro.frontend.runtime.cache import CaptureLimitWarning
from torchrepro.frontend.runtime.capture import Region
from torchrepro.frontend.runtime.dispatch import dispatch
from torchrepro.frontend.runtime.settings import Backend, Settings
from torchrepro.frontend.runtime.wrapping import (
    TracedModule,
    as_python,
    not_python,
    traced_callable,
    untraced,
    why_python_runs,
)
from torchrepro.frontend.trace.tracer import Failure
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import ModelRequest
from torchrepro.second_opinion.explanation import (
    CapturedRegion,
    CaptureExplanation,
    GraphBreak,
    GraphInput,
    InlinedFunction,
    Place,
    SecondOpinion,
)
from torchrepro.second_opinion.rendering import hint_of, short_file, spoken_reason, spoken_source
from torchrepro.second_opinion.verify import Outcome, agreement, outcome_of
from torchrepro.state.snapshot import State, in_state
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state

Call = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""Calls the function, or its captured form, with its arguments."""
AskDynamo = Callable[[Outcome], SecondOpinion]


def explain_capture(function: Any, *args: Any, dynamo: bool = False, **kwargs: Any) -> CaptureExplanation:
    """Return how a call becomes graphs: what each contains, why it ends, and what to write instead.

    The function runs once on these arguments, with all of its side effects. Its result is kept.
    `dynamo=True` adds TorchDynamo's second opinion, from clones of the state before; then the function runs
    three times in all, and Dynamo is reset, as by its own `explain`.

    `explain_call` takes the arguments as a tuple and a dict, for functions with a parameter named `dynamo`.
    """
    return explain_call(function, args, kwargs, dynamo=dynamo)


def explain_call(
    function: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Backend | None = None,
    dynamo: bool = False,
    call: Call = lambda function, args, kwargs: function(*args, **kwargs),
) -> CaptureExplanation:
    """Return what `explain_capture` does; a `backend` compiles the graphs, which otherwise run uncompiled.

    If the function is compiled or captured already, the original is explained.
    """
    function = as_python(untraced(function))
    watch = _Watch()
    settings = Settings(backend or (lambda graph, inputs: graph.forward), watchers=(watch,))
    captured = traced_callable(function, settings)
    if captured is function:
        raise not_python(function, "explain")
    if isinstance(function, torch.nn.Module):
        captured = TracedModule(function, settings)  # `call` may use its other methods, too
    named = dict(kwargs or {})
    ask = _prepared(function, args, named, call) if dynamo else None
    with _limits_as_notes() as notes:
        ours = outcome_of(function, args, named, lambda: call(captured, args, named))
    regions, breaks = _told(watch.seen)
    return CaptureExplanation(
        name=short_name(getattr(function, "__qualname__", None) or type(function).__qualname__),
        regions=regions,
        breaks=breaks,
        inlined=_inlined([region for region, _ in watch.seen]),
        raised=ours.raised,
        notes=tuple(filter(None, (why_python_runs(function), *notes))),
        dynamo=None if ask is None else ask(ours),
        result=ours.result,
        error=ours.error,
    )


def explain_model(payload: dict[str, Any], phase: Phase) -> dict[str, Any]:
    """Explain how a user's own model becomes graphs, as the job of a fresh process.

    Returns plain data, with `verified`: the agreement with a plain run, if that was requested.
    """
    phase("build")
    request = msgspec.convert(payload["request"], ModelRequest)
    trial = load_trial(request)
    compiler = trial.compiler
    built = trial.factory.fresh()

    def call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return trial.run(function, built.model, tuple(args), kwargs)

    phase("capture")
    state = capture_rng_state()
    explained = explain_call(
        built.model,
        built.args,
        built.kwargs,
        backend=None if compiler.name == "eager" else backend_function(compiler),
        dynamo=payload["dynamo"],
        call=call,
    )
    verified = None
    if payload["verify"] or explained.error is not None:
        phase("eager")
        after = outcome_of(built.model, built.args, built.kwargs, lambda: explained.result)
        plain = trial.factory.fresh()
        restore_rng_state(state)
        eager = outcome_of(
            plain.model, plain.args, plain.kwargs, lambda: call(plain.model, plain.args, plain.kwargs)
        )
        if eager.error is not None and type(eager.error) is type(explained.error):
            raise TorchReproError(
                f"{request.target} fails without capture too ({eager.raised})",
                next_step="make it run in plain Python first",
            ) from eager.error
        verified = agreement("torchrepro", eager, replace(after, error=explained.error))
    return {
        **replace(explained, notes=(*explained.notes, *trial.notes)).to_dict(),
        "fullgraph": compiler.fullgraph,
        "verified": None if verified is None else asdict(verified),
    }


@dataclass(slots=True, eq=False)
class _Counting:
    """A backend that runs graphs uncompiled, and counts them, their ops and their breaks."""

    graphs: int = 0
    ops: int = 0
    breaks: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        self.ops += sum(node.op.startswith("call") for node in graph.graph.nodes)
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            place = reason.user_stack[-1] if reason.user_stack else None
            where = "" if place is None else f"{short_file(place.filename)}:{place.lineno}"
            self.breaks.append((_first_line(reason.reason), where))
        return graph.forward


def _prepared(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call) -> AskDynamo:
    """Clone the state of a call before the explained call changes it; return a function that runs Dynamo.

    Checked on torch 2.11 to 2.13 (`compile_subgraph_reason` of a captured graph, `reset`).
    """
    live = State.of(function, tuple(args), kwargs)
    start, clones = capture_rng_state(), [live.cloned() for _ in range(3)]

    def run(state: State, wrap: Callable[[Any], Any] = lambda function: function) -> Outcome:
        restore_rng_state(start)
        now = live.again()
        called = wrap(function)  # before the state is set: torch.compile marks the modules that it wraps
        with in_state(state, now):
            return outcome_of(
                function, state.args, state.kwargs, lambda: call(called, state.args, state.kwargs)
            )

    def ask(ours: Outcome) -> SecondOpinion:
        from torchrepro.torch_api.dynamo import counters, reset

        after = capture_rng_state()
        counting = _Counting()
        try:
            eager = run(clones[0])
            reset()
            before = Counter(counters["graph_break"])
            theirs = run(clones[1], lambda target: torch.compile(target, backend=counting, dynamic=False))
            reset()
            agreements = (agreement("torchrepro", eager, ours), agreement("dynamo", eager, theirs))
            steady = all(each.same for each in agreements) or agreement("", eager, run(clones[2])).same
        finally:
            restore_rng_state(after)
        notes = [f"an iterator, which all runs advance: {path}" for path in live.opaque]
        if not steady:
            notes.append("Python does not agree with itself from run to run: a difference tells little")
        # Dynamo reports a break in a called function again for the caller; it counts those without a graph.
        breaks = dict.fromkeys(counting.breaks)
        known = {reason for reason, _ in breaks}
        counted = set(map(_first_line, counters["graph_break"] - before))
        breaks |= {(reason, ""): None for reason in counted - known}
        raised = "" if eager.error is not None else theirs.raised
        return SecondOpinion(
            counting.graphs, counting.ops, tuple(breaks), raised, agreements, "; ".join(notes)
        )

    return ask


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]


@dataclass(slots=True, eq=False)
class _Watch:
    """The regions of a call, each with the depth of captured calls."""

    seen: list[tuple[Region, int]] = field(default_factory=list)
    start: int = field(default_factory=lambda: _calls_under_way())

    def __call__(self, region: Region) -> None:
        self.seen.append((region, _calls_under_way() - self.start - 1))


def _calls_under_way() -> int:
    return sum(frame.f_code is dispatch.__code__ for frame, _ in traceback.walk_stack(None))


@contextmanager
def _limits_as_notes() -> Iterator[list[str]]:
    """Collect warnings about places that were captured too often; forward other warnings."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureLimitWarning)
        yield notes
    for each in caught:
        if issubclass(each.category, CaptureLimitWarning):
            notes.append(spoken_source(str(each.message), midway=True))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _told(
    seen: Sequence[tuple[Region, int]],
) -> tuple[tuple[CapturedRegion, ...], tuple[GraphBreak, ...]]:
    """Return regions and breaks. A break in a called function ends the caller's region too: list it once."""
    regions: list[CapturedRegion] = []
    breaks: dict[tuple[Place, str], GraphBreak] = {}
    calls: list[Place] = []
    """The call sites of the functions around the current region, the outermost first."""
    for (region, depth), following in pairwise([*seen, None]):  # type: ignore[misc]
        del calls[depth:]
        failure, number, callee = region.failure, None, ""
        end = None if failure is None else _place_of(failure.frames[0] if failure.frames else failure.where)
        if failure is not None and end is not None:
            if following is not None and following[1] > depth:
                calls.append(end)
                callee = _place_of(following[0].start).function
            else:
                found = _break(failure, region.finish, calls, len(breaks) + 1)
                known = breaks.setdefault((found.place, found.reason), found)
                number = known.number
                if found.rest_of:  # seen before, but now Python runs all that follows
                    breaks[found.place, found.reason] = replace(known, rest_of=found.rest_of)
        regions.append(replace(_region(region, len(regions) + 1, end, depth), after=number, calls=callee))
    return tuple(regions), tuple(breaks.values())


def _break(failure: Failure, finish: bool, calls: Sequence[Place], number: int) -> GraphBreak:
    reason, inner = failure.reason, failure.frames or (failure.where,)
    expression, column = _expression_at(failure.where.file, failure.position)
    return GraphBreak(
        number=number,
        kind=reason.kind,
        reason=spoken_reason(reason.text),
        hint=hint_of(reason),
        place=_place_of(failure.where),
        expression=expression,
        column=column,
        frames=(*calls, *map(_place_of, inner)),
        rest_of=_place_of(inner[0]).function if finish else "",
    )


def _region(region: Region, number: int, end: Place | None, depth: int) -> CapturedRegion:
    midway = region.entry > 0
    return CapturedRegion(
        number=number,
        start=_place_of(region.start),
        end=end,
        ops=region.captured.op_count,
        graph=_readable(region.captured.graph_module),
        inputs=tuple(
            GraphInput(spoken_source(shown_source(source), midway=midway), _described(tensor))
            for source, tensor in region.captured.inputs
        ),
        guards=tuple(spoken_source(each.sentence(), midway=midway) for each in region.guards.guards),
        code=region.code.text,
        depth=depth,
    )


def _inlined(regions: Sequence[Region]) -> tuple[InlinedFunction, ...]:
    times: Counter[Where] = Counter()
    for region in regions:
        times.update(region.inlined)
    return tuple(
        InlinedFunction(where.function, where.file, where.line, count) for where, count in times.items()
    )


def _readable(graph: torch.fx.GraphModule) -> str:
    """Return the graph's code without the lines that FX adds for the garbage collector."""
    lines = (re.sub(r";  [\w = ]+ = None$", "", line.rstrip()) for line in graph.code.splitlines())
    return "\n".join(line for line in lines if line)


def _described(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{dtype} {tuple(tensor.shape)}{where}"


def _place_of(where: Where) -> Place:
    text = linecache.getline(where.file, where.line).rstrip()
    return Place(where.file, where.line, short_name(where.function), text)


def _expression_at(file: str, position: InstrLocation | None) -> tuple[str, int]:
    """Return the text that a traceback would underline and its column; empty if that is unknown."""
    if position is None or position.col_offset is None or position.end_col_offset is None:
        return "", 0
    first = position.lineno or 0
    last = position.end_lineno or first
    lines = [linecache.getline(file, number) for number in range(first, last + 1)]
    if not all(lines):
        return "", 0
    # Columns count bytes.
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][: position.end_col_offset]
    before, encoded[0] = encoded[0][: position.col_offset], encoded[0][position.col_offset :]
    return b"".join(encoded).decode(errors="replace").strip(), len(before.decode(errors="replace"))
