"""Run a graph on tensors without data: what its nodes would compute, and nothing is left of it afterwards.

Modes, generators and the tensors of the graph stay as they were, and code of the user is not run.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Interpreter, Node

from torchrepro.graph_text import resolver
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.torch_api import pytree as pytree
from torchrepro.torch_api.fake import FakeTensorMode, ShapeEnv
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state
from torchrepro.torch_api.modes import modes_kept
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, eq=False)
class Propagated:
    """How a graph ran without data."""

    values: Mapping[str, Any]
    """By the names of the nodes; where the graph could not be run to its end, up to there."""
    raised: Exception | None = None
    node: Node | None = None
    """The last node that was run: what raised, if something did."""
    warned: bool = False
    """Whether torch had something to say against the way it is called."""


def propagate(repro: Repro) -> Propagated:
    """Run a graph up to its end, to the first op that raises, or to the first of which nothing is known."""
    # Loops ask for symbols, even where no size is one.
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> Any:
        return mode.from_tensor(tensor, static_shapes=True)

    try:
        inputs = pytree.tree_map_only(torch.Tensor, fake, repro.inputs)
    except Exception:
        return Propagated({})  # a kind of tensor that has no fake
    run = _Propagation(repro.graph, mode)
    raised: Exception | None = None
    with _unnoticed(repro) as warned, mode, _around(repro), _regions_left(run):
        try:
            run.run(*inputs)
        except _Unknown:
            pass  # what was found up to there holds
        except Exception as exc:
            raised = exc
    return Propagated(run.values, raised, run.node, bool(warned))


class _Unknown(Exception):
    """From here on nothing can be told without running the user's code, or without data."""


class _Propagation(Interpreter):
    """Runs a graph on fakes, up to the first node of which nothing is known."""

    def __init__(self, module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.extra_traceback = False
        self.entered: list[Any] = []
        """What nodes of the graph have entered and not yet left: autocast, inference mode."""
        self.values: dict[str, Any] = {}
        self.node: Node | None = None
        """The last one that was run."""
        self._mode = mode

    def run_node(self, n: Node) -> Any:
        self.node = n
        if n.op == "call_function" and not _is_torch(n.target):
            raise _Unknown
        if _holds_symbol(n.args) or _holds_symbol(n.kwargs):
            raise _Unknown
        left = [self.env.get(operand) for operand in n.all_input_nodes] if self.entered else []
        result = super().run_node(n)
        self.entered = [region for region in self.entered if not any(region is each for each in left)]
        if n.op == "call_function" and hasattr(result, "__exit__"):
            self.entered.append(result)
        self.values[n.name] = result
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        # Written to as it is, a tensor of the module would count another version.
        return self._mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        if not type(module).__module__.startswith("torch."):
            raise _Unknown
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        fakes: dict[str, Any] = {
            name: self._mode.from_tensor(tensor, static_shapes=True) for name, tensor in state.items()
        }
        return torch.func.functional_call(module, fakes, args, kwargs)


def _holds_symbol(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_holds_symbol(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_symbol(item) for item in value.values())
    return isinstance(value, _SYMBOLIC)


def _is_torch(target: Any) -> bool:
    """Whether it is an operator or one of torch's and Python's own functions, and no code of the user."""
    return (
        isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator)
        or resolver.path_of(target) is not None
    )


@contextmanager
def _around(repro: Repro) -> Iterator[None]:
    """What stands around the call, as far as it changes shapes and dtypes."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, repro.ambient.default_dtype))
    try:
        with applied_modes(repro.ambient), ExitStack() as stack:
            if repro.place is Place.AFTER_AOT:
                stack.enter_context(torch.no_grad())
            yield
    finally:
        torch.set_default_dtype(default)


@contextmanager
def _regions_left(propagation: _Propagation) -> Iterator[None]:
    """Modes as they were: a graph that ends midway leaves the regions open that its nodes have entered."""
    with modes_kept():
        try:
            yield
        finally:
            for region in reversed(propagation.entered):
                region.__exit__(None, None, None)


@contextmanager
def _unnoticed(repro: Repro) -> Iterator[list[warnings.WarningMessage]]:
    """Generators as they were, and not a word from kernels that are only asked for shapes.

    What torch would have warned of is kept.
    """
    held = (repro.inputs, list(vars(repro.graph).values()))
    generators = [value for value in pytree.tree_leaves(held) if isinstance(value, torch.Generator)]
    state = capture_rng_state(*generators)
    quiet_before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield warned
    finally:
        logging.disable(quiet_before)
        restore_rng_state(state)
