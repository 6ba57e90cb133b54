"""Faults: handle an error that a compiled graph raises when it runs, such as an index out of range.

The user's code may have a handler around the operation, and may have changed something before it; the graph
has neither. So Python runs the region again, from its start: nothing is written before a graph has run.
What the graph itself changed is restored where a handler may see it; else the error says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchrepro.frontend.graph_breaks import Control
from torchrepro.frontend.trace.recorder import Captured
from torchrepro.nouns.errors import TorchReproError
from torchrepro.torch_api.generators import RngState, capture_rng_state, restore_rng_state

Graph = Callable[..., Sequence[Any]]

_CHANGED = (
    "Raised in a captured graph, which may have changed {what} before. What the function did in Python "
    "since the graph began was not done."
)


class RunByPython(Control):
    """The failing operation fails without a compiler too: Python runs this part of the function."""


def with_faults(compiled: Graph, captured: Captured, *, protected: bool) -> Graph:
    """Return a compiled graph that raises `RunByPython` in place of an error of the program.

    `protected`: a handler of the user's may see the error, so what the graph changes must be restored.
    An error that only the compiled graph raises is an error of the compiler, and is raised as it is.
    """
    count = len(captured.outputs)
    changed = [
        index for index, (source, _) in enumerate(captured.inputs) if source in captured.mutated_inputs
    ]

    def run(*inputs: Any) -> Sequence[Any]:
        before = _Before(inputs, changed) if protected and captured.effects else None
        try:
            outputs = compiled(*inputs)
        except Exception as error:
            captured.start_state.apply()
            if captured.effects and not (before is not None and before.put_back()):
                what = ", ".join(map(str, captured.mutated_inputs)) or "a generator"
                error.add_note(_CHANGED.format(what=what))
                raise
            if not _fails(captured, inputs):
                raise
            if before is not None:
                before.put_back()
            raise RunByPython from error
        except BaseException:
            captured.start_state.apply()
            raise
        if not isinstance(outputs, tuple | list) or len(outputs) != count:
            given = f" of {len(outputs)}" if isinstance(outputs, tuple | list) else ""
            raise TorchReproError(
                f"a compiled graph gave a {type(outputs).__name__}{given} in place of a tuple of {count}",
                next_step="the function that the backend returns is to give what the graph gives",
            )
        return outputs

    return run


class _Before:
    """What a graph is about to change: the memory of inputs, and the state of random generators."""

    def __init__(self, inputs: Sequence[Any], changed: Sequence[int]) -> None:
        self._copies = [(inputs[index], inputs[index].detach().clone()) for index in changed]
        self._rng: RngState = capture_rng_state()

    def put_back(self) -> bool:
        """Undo the changes; return False where autograd has recorded a write, which cannot be undone."""
        if any(tensor.requires_grad for tensor, _ in self._copies):
            return False
        for tensor, copy in self._copies:
            tensor.data.copy_(copy)
        restore_rng_state(self._rng)
        return True


def _fails(captured: Captured, inputs: Sequence[Any]) -> bool:
    try:
        captured.graph_module.forward(*inputs)  # calling the module itself would print the error
    except Exception:
        captured.start_state.apply()
        return True
    return False
