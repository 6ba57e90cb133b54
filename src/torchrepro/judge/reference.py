"""The float64 reference: the truth against which eager and compiled are both measured.

For a module or function, clone it and its inputs to float64 first (`judge.clone`), so that parameters and inputs
are float64 leaves and gradients accumulate in float64; then run it through `run_in_fp64`. For a graph,
`run_graph_in_fp64` does both, one value at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchrepro.judge.clone_tensor import TensorCloner
from torchrepro.judge.precision import FLOAT64, Precision, ReferenceUnavailable, precision_for
from torchrepro.judge.randomness import Draws, ReplayRandom, capture_rng_state, same_randomness
from torchrepro.judge.shadow import is_plain
from torchrepro.judge.upcast import Upcast


@dataclass(frozen=True, eq=False)
class Reference:
    """What the reference run returned, and how far it was from an ideal one."""

    value: Any
    dtype: torch.dtype = torch.float64
    notes: tuple[str, ...] = ()
    mutated: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """For a graph: inputs that it wrote to, by position, with their final values."""


def run_in_fp64(
    fn: Callable[[], Any], *, draws: Draws | None = None, precision: Precision = FLOAT64
) -> Reference:
    """Call `fn` so that everything in it happens in float64, backward passes included.

    `draws` are those that `RecordRandom` kept of the eager run. Raises `ReferenceUnavailable` where there is no
    such run. The random generators, the default dtype and all modes are afterwards as they were.
    """
    with _reference_run(draws, precision) as run:
        value = fn()
    return Reference(value, precision.real, run.notes)


def run_graph_in_fp64(
    gm: GraphModule, inputs: Sequence[Any], *, draws: Draws | None = None, precision: Precision | None = None
) -> Reference:
    """Run a graph without autograd. An input is widened at its first use and dropped after its last.

    Neither the module nor the inputs are written to; what the graph writes to its inputs is in `mutated`.
    """
    notes: tuple[str, ...] = ()
    if precision is None:
        tensors = [item for item in (*inputs, *gm.state_dict().values()) if isinstance(item, torch.Tensor)]
        precision, notes = precision_for(tensor.device.type for tensor in tensors)
    with _reference_run(draws, precision) as run, torch.no_grad():
        interpreter = _WideningInterpreter(gm, precision)
        value = interpreter.run(*inputs)
    return Reference(value, precision.real, notes + run.notes, interpreter.mutated)


@contextmanager
def _reference_run(draws: Draws | None, precision: Precision) -> Iterator[Upcast]:
    """Everything around a reference run: modes, replay, generators put back, failures in one kind of error."""
    replay = None if draws is None else ReplayRandom(draws)
    run = Upcast(precision, replay)
    try:
        with same_randomness(capture_rng_state()), _no_compiler(), run:
            yield run
        if run.unavailable is not None:
            raise run.unavailable
        if replay is not None:
            replay.check_all_used()
    except ReferenceUnavailable:
        raise
    except Exception as exc:
        if run.unavailable is not None:
            raise run.unavailable from exc
        first = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
        raise ReferenceUnavailable(f"the float64 run raises {type(exc).__name__}: {first}") from exc


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Whatever the function compiles by itself runs as written: the judge never trusts a compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield


class _WideningInterpreter(Interpreter):
    """Keeps inputs and constants narrow until a node reads them, then wide until the last one has."""

    def __init__(self, gm: GraphModule, precision: Precision) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.mutated: dict[int, torch.Tensor] = {}
        self._precision = precision
        self._written = _nodes_written_to(gm)
        self._positions = {
            node: i for i, node in enumerate(node for node in gm.graph.nodes if node.op == "placeholder")
        }
        self._sources: dict[Node, Any] = {}
        self._storage_mates: dict[int, list[Node]] = {}
