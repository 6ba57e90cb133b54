"""Fake tensors, symbolic shapes and tracing on them.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._subclasses.fake_tensor
import torch.fx.experimental.proxy_tensor
import torch.fx.experimental.symbolic_shapes
import torch.fx.graph
import torch.fx.passes.shape_prop
import torch.utils._sympy.functions
import torch.utils._sympy.value_ranges

from torchrepro.torch_api import pytree

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""A tensor with metadata and no data."""

FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""Run operators on metadata only."""

make_fx = torch.fx.experimental.proxy_tensor.make_fx
"""Trace a function of tensors into a graph of ATen operators."""

snapshot_fake = torch.fx.experimental.proxy_tensor.snapshot_fake
"""Copy a fake tensor, so that its metadata does not change any more."""

DimDynamic = torch.fx.experimental.symbolic_shapes.DimDynamic
"""How a dimension becomes a symbol."""

ShapeEnv = torch.fx.experimental.symbolic_shapes.ShapeEnv
"""The symbols of a trace, with their hints and guards."""

StatelessSymbolicContext = torch.fx.experimental.symbolic_shapes.StatelessSymbolicContext
"""Which dimensions of a tensor become symbols."""

compute_unbacked_bindings = torch.fx.experimental.symbolic_shapes.compute_unbacked_bindings
"""Where unbacked symbols come from in a value."""

extract_tensor_metadata = torch.fx.passes.shape_prop._extract_tensor_metadata
"""The `tensor_meta` that compilers expect on nodes."""

PyTreeCodeGen = torch.fx.graph._PyTreeCodeGen
"""Code generator of graphs that flatten their inputs by themselves."""

ValueRanges = torch.utils._sympy.value_ranges.ValueRanges
"""The values that a symbol may have."""

sympy_functions = torch.utils._sympy.functions
"""Integer division and other functions in expressions over symbols."""

fake_errors = torch._subclasses.fake_tensor
"""Exceptions of operators that cannot run without data (`DataDependentOutputException` and its siblings)."""


class FakeInterpreter(torch.fx.Interpreter):
    """Run a graph on fake tensors of one mode; its constants become fakes as well.

    Writing to the module's tensors themselves would increment their version counters.
    """

    def __init__(self, module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.mode = mode

    def fake(self, value: Any) -> Any:
        """Return a tensor as a fake with static sizes; anything else unchanged."""
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self.mode.from_tensor(value, static_shapes=True)
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.fake(super().get_attr(target, args, kwargs))


def flat_inputs(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return state and inputs of an exported program in graph order (`_graph_module_flat_inputs`)."""
    return tuple(program._graph_module_flat_inputs(args, kwargs))


def takes_nested_values(graph: Any) -> bool:
    """Return whether a graph unpacks containers, as `ExportedProgram.module()` does (`_codegen`)."""
    return isinstance(graph._codegen, PyTreeCodeGen)


def with_flat_values(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the module with a graph that is called with its placeholders and returns a flat tuple.

    AOTInductor leaves the parameters of a program in the module. Below autograd they are constants.
    """
    if not takes_nested_values(module.graph):
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    made = torch.fx.GraphModule(module, graph)
    for target in {str(node.target) for node in graph.nodes if node.op == "get_attr"}:
        path, _, name = target.rpartition(".")
        owner = made.get_submodule(path)
        value = getattr(owner, name)
        if isinstance(value, torch.nn.Parameter):
            delattr(owner, name)
            owner.register_buffer(name, value.detach())
    return made


def set_calling_convention(graph: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    """Describe arguments and results of a flat graph for AOTInductor (`_in_spec`, `_out_spec`)."""
    graph._in_spec = pytree.tree_structure((inputs, {}))
    graph._out_spec = pytree.tree_structure(outputs)


def fits_guards(placeholders: Sequence[Any], values: Sequence[Any]) -> bool:
    """Return whether the guards on the symbols in a graph's example inputs let other inputs through.

    Checked on torch 2.13 (`ShapeEnv.evaluate_guards_for_args`). Symbols of several environments do not occur:
    a graph has one `FakeTensorMode`.
    """
    pairs = [
        (fake, value)
        for fake, value in zip(placeholders, values, strict=False)
        if isinstance(fake, FakeTensor | torch.SymInt)
    ]
    sizes = [
        size
        for fake, _ in pairs
        for size in (fake.shape if isinstance(fake, torch.Tensor) else (fake,))
        if isinstance(size, torch.SymInt)
    ]
    if not sizes:
        return True
    env: Any = sizes[0].node.shape_env
    return bool(env.evaluate_guards_for_args([fake for fake, _ in pairs], [value for _, value in pairs]))


@contextmanager
def named_next(env: Any, name: str) -> Iterator[None]:
    """Give the next symbol that a `ShapeEnv` creates this name (`_generate_unique_id`).

    It numbers symbols by a hash of their source's name; the number in a graph's text must be kept.
    """
    number = int("".join(filter(str.isdigit, name)) or 0)
    env._generate_unique_id = lambda source_name: number
    try:
        yield
    finally:
        del env._generate_unique_id
