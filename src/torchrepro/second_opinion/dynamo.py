"""The second opinion: TorchDynamo on the same call, and whether it and we agree with Python.

Checked on torch 2.11 to 2.13 (`compile_subgraph_reason` of a captured graph, `reset`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.compare import same
from torchrepro.judge.execute import named_state
from torchrepro.second_opinion.explanation import Agreement, SecondOpinion
from torchrepro.second_opinion.rendering import short_file
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """All that a caller sees of one call, so that two calls of a function can be compared."""

    result: Any
    seen: Mapping[str, Any]
    """The result, and the arguments and the module's state after the call."""
    error: Exception | None = None

    @property
    def raised(self) -> str:
        """The error in one line; empty where there is none."""
        if self.error is None:
            return ""
        lines = str(self.error).splitlines()
        return f"{type(self.error).__name__}: {lines[0]}" if lines else type(self.error).__name__


def outcome_of(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]
) -> Outcome:
    result, error = None, None
    try:
        result = run()
    except Exception as raised:
        error = raised
    state = named_state(function) if isinstance(function, torch.nn.Module) else {}
    seen = {"result": result, "arguments": list(args), "keywords": dict(kwargs), "state": dict(state)}
    return Outcome(result, seen, error)


def agreement(who: str, eager: Outcome, other: Outcome) -> Agreement:
    """Compare a call with Python's by the judge; errors are the same if they are of one type."""
    if type(eager.error) is not type(other.error):
        told = [f"it {'raised ' + each.raised if each.error else 'returned'}" for each in (other, eager)]
        return Agreement(who, False, f"{told[0]}, where Python {told[1].removeprefix('it ')}")
    compared = same(eager.seen, other.seen)
    return Agreement(who, bool(compared), "" if compared else str(compared))


@dataclass(slots=True, eq=False)
class _Counting:
    """A backend that runs graphs as they are, and remembers what they were."""

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


def prepared(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any],
) -> Callable[[Outcome], SecondOpinion]:
    """Copy function and arguments before the explained call changes them; return how to ask Dynamo later."""
    shared: list[str] = []
    copies = [clone_inputs((function, tuple(args), dict(kwargs)), shared=shared) for _ in range(3)]
    state = capture_rng_state()

    def run(copy: tuple[Any, ...], wrap: Callable[[Any], Any] = lambda function: function) -> Outcome:
        copied, given, named = copy
        restore_rng_state(state)
        return outcome_of(copied, given, named, lambda: call(wrap(copied), given, named))

    def ask(ours: Outcome) -> SecondOpinion:
        from torchrepro.torch_api.dynamo import counters, reset

        after = capture_rng_state()
        counting = _Counting()
        try:
            eager = run(copies[0])
            reset()
            before = Counter(counters["graph_break"])
            theirs = run(copies[1], lambda copied: torch.compile(copied, backend=counting, dynamic=False))
            reset()
            agreements = (agreement("torchrepro", eager, ours), agreement("dynamo", eager, theirs))
            steady = all(each.same for each in agreements) or agreement("", eager, run(copies[2])).same
        finally:
            restore_rng_state(after)
        notes = [f"not copied, so all runs share it: {line}" for line in dict.fromkeys(shared)]
        notes += (
            [] if steady else ["Python does not agree with itself from run to run: a difference tells little"]
        )
        raised = "" if eager.error is not None else theirs.raised
        # Dynamo reports a break in a called function again for the caller.
        breaks = dict.fromkeys(counting.breaks)
        known = {reason for reason, _ in breaks}
        breaks |= {(reason, ""): None for reason in _reasons(counters["graph_break"] - before) - known}
        return SecondOpinion(
            counting.graphs, counting.ops, tuple(breaks), raised, agreements, "; ".join(notes)
        )

    return ask


def _reasons(counted: Counter[str]) -> set[str]:
    """Return the reasons that Dynamo counted itself: also those of breaks that made no graph."""
    return set(map(_first_line, counted))


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]
