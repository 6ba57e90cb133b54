"""Outcome: all that a caller sees of one call, so that two calls of a function can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.judge.compare import same
from torchrepro.judge.execute import named_state
from torchrepro.second_opinion.explanation import Agreement


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
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
    """Whether a call did what Python's did, by the judge; errors are the same if they are of one type."""
    if type(eager.error) is not type(other.error):
        told = [f"it {'raised ' + each.raised if each.error else 'returned'}" for each in (other, eager)]
        return Agreement(who, False, f"{told[0]}, where Python {told[1].removeprefix('it ')}")
    compared = same(eager.seen, other.seen)
    return Agreement(who, bool(compared), "" if compared else str(compared))
