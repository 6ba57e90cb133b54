"""The float64 reference: the truth against which eager and compiled are both measured.

For a module or function, clone it and its inputs to float64 first (`judge.clone`), so that parameters and
inputs are float64 leaves and gradients accumulate in float64; then run it through `run_in_fp64`. For a
graph, `run_graph_in_fp64` does both, one value at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchrepro.judge.clone_tensor import TensorCloner
from torchrepro.judge.randomness import Draws, ReplayRandom
from torchrepro.judge.upcast import Upcast
from torchrepro.judge.wide_tensors import FLOAT64, Precision, below_dispatch_modes, is_plain, precision_for
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.modes import DisableTorchFunction


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

    `draws` are those that `RecordRandom` kept of the eager run. Raises `ReferenceUnavailable` where there is
    no such run. The random generators, the default dtype and all modes are afterwards as they were.
    """
    with _reference_run(draws, precision) as run:
        value = fn()
    return Reference(_with_current_values(value, run), precision.real, run.notes)


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
        value = interpreter.run_graph(inputs)
    return Reference(_with_current_values(value, run), precision.real, notes + run.notes, interpreter.mutated)


def _with_current_values(value: Any, run: Upcast) -> Any:
    """Return the result with narrow tensors (a closure handed out as it is) as the run left them: wide."""
    if isinstance(value, torch.Tensor):
        return run.current(value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_with_current_values(item, run) for item in value)
    if type(value) in (list, tuple):
        return type(value)(_with_current_values(item, run) for item in value)
    if isinstance(value, dict):
        parts = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {item.name: getattr(value, item.name) for item in fields(value)}
    else:
        return value
    changed = {name: _with_current_values(part, run) for name, part in parts.items()}
    changed = {name: part for name, part in changed.items() if part is not parts[name]}
    if not changed:
        return value
    made: Any = copy.copy(value)
    for name, part in changed.items():
        if isinstance(value, dict):
            made[name] = part
        else:
            object.__setattr__(made, name, part)
    return made


@contextmanager
def _reference_run(draws: Draws | None, precision: Precision) -> Iterator[Upcast]:
    """What surrounds a reference run: modes, replay, generators put back, one kind of error."""
    replay = None if draws is None else ReplayRandom(draws)
    run = Upcast(precision, replay)
    try:
        with same_randomness(capture_rng_state()), without_compilers(), run:
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
def without_compilers() -> Iterator[None]:
    """Whatever the model compiles by itself runs as written: the judge never trusts a compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield


class _WideningInterpreter(Interpreter):
    """Keeps inputs and constants narrow until a node reads them, then wide until the last one has."""

    def __init__(self, gm: GraphModule, precision: Precision) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.mutated: dict[int, torch.Tensor] = {}
        self._precision = precision
        self._graph = gm.graph
        self._mates: dict[Node, list[Node]] = {}
        self._narrow: dict[Node, torch.Tensor] = {}
        self._wide: dict[Node, torch.Tensor] = {}
        self._versions: dict[Node, int] = {}
        self._aliased: dict[Node, torch.Tensor] = {}
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._positions = {node: i for i, node in enumerate(placeholders)}

    def run_graph(self, inputs: Sequence[Any]) -> Any:
        """Run all nodes in order; every value is dropped after its last use."""
        flat = self._graph.process_inputs(*inputs)
        self.args_iter = iter(flat)
        self._collect_sources(flat)
        result = None
        for node in self._graph.nodes:
            self.env[node] = result = self.run_node(node)
            for dead in self.user_to_last_uses.get(node, ()):
                self._release(dead)
        for node, wide in self._aliased.items():
            if any(self._positions.get(mate) in self.mutated for mate in self._mates[node]):
                self.mutated[self._positions[node]] = wide
        return self._graph.process_outputs(result)

    def _release(self, node: Node) -> None:
        """Drop a value, unless it is an input that was written to, perhaps through one that it aliases."""
        value = self.env.pop(node)
        if node not in self._positions or node not in self._versions:
            return
        if value._version != self._versions[node]:
            self.mutated[self._positions[node]] = value
        elif len(self._mates[node]) > 1:
            self._aliased[node] = value

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return next(self.args_iter)

    def run_node(self, n: Node) -> Any:
        for read in n.all_input_nodes:
            if read in self._narrow:
                self._widen(read)
            if read in self._wide:
                self.env[read] = self._wide.pop(read)
        return super().run_node(n)

    def _collect_sources(self, inputs: Sequence[Any]) -> None:
        """Which nodes bring tensors from outside, and which of them share a storage."""
        given = iter(inputs)
        mates: dict[int, list[Node]] = {}
        for node in self._graph.nodes:
            if node.op == "placeholder":
                value = next(given)
            elif node.op == "get_attr":
                value = self.fetch_attr(node.target)
            else:
                continue
            if not isinstance(value, torch.Tensor):
                continue
            self._narrow[node] = value
            with DisableTorchFunction():
                key = value.untyped_storage()._cdata if is_plain(value) else id(value)
            self._mates[node] = mates.setdefault(key, [])
            self._mates[node].append(node)

    def _widen(self, node: Node) -> None:
        """Clone the storage of this source, at once for all that share it: they must go on sharing."""
        cloner = TensorCloner(self._precision.real, self._precision.device)
        with DisableTorchFunction(), below_dispatch_modes():
            for mate in self._mates[node]:
                made = cloner.clone(self._narrow.pop(mate)).detach()
                self._versions[mate] = made._version
                self._wide[mate] = made
