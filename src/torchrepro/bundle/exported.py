"""From a program of `torch.export` to a repro: its flat graph, with all state as inputs in signature order.

What the signature lists as extra outputs (new values of buffers and inputs, once a program is functional) is
written back into the inputs at the end of the graph, as running the program does. So the judge compares it
with the other mutated inputs, and a note says which input is which.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph
from torch.fx.node import Node

from torchrepro.graph_text.metadata import narrowed, symbols_of
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Ambient, Compiler, Place, Repro
from torchrepro.torch_api import pytree
from torchrepro.torch_api.fake import flat_inputs

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)
_NOTE_WIDTH = 400


def repro_of_exported(
    program: ExportedProgram,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    compiler: Compiler,
    ambient: Ambient,
) -> Repro:
    """Return a repro of an exported program, on the inputs of its export unless others are given."""
    if args is None and kwargs is None:
        if program.example_inputs is None:
            raise TorchReproError("the program carries no example inputs", next_step="pass args and kwargs")
        args, kwargs = program.example_inputs
    inputs = _flat_inputs(program, tuple(args or ()), dict(kwargs or {}))
    graph = copy.deepcopy(program.graph_module)
    _write_back(graph.graph, program.graph_signature)
    graph.recompile()
    ranges = {str(symbol): known for symbol, known in program.range_constraints.items()}
    return Repro(
        graph=graph,
        inputs=inputs,
        place=Place.EXPORT,
        compiler=compiler,
        ambient=ambient,
        # Each within what tracing inferred and what the user requested.
        symbols=tuple(
            narrowed(symbol, ranges[symbol.name]) if symbol.name in ranges else symbol
            for symbol in symbols_of(program.graph_module)
        ),
        # Libraries of AOTInductor have no backward.
        backward=False if compiler.name == "aot_inductor" else None,
        notes=(
            *_written_inputs(graph.graph, program.graph_signature),
            *_returns(program.call_spec.out_spec),
        ),
    )


def _flat_inputs(program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return state and user inputs in signature order."""
    try:
        found = flat_inputs(program, args, kwargs)
    except (ValueError, TypeError, KeyError, RuntimeError) as failure:
        raise TorchReproError(
            f"the inputs do not fit the program: {textwrap.shorten(str(failure), _NOTE_WIDTH)}",
            next_step="call it as it was exported",
        ) from failure
    if len(found) != len(program.graph_signature.input_specs):
        kinds = sorted({spec.kind.name.lower() for spec in program.graph_signature.input_specs})
        raise TorchReproError(
            f"the program has inputs that are no data (among {', '.join(kinds)})",
            next_step="export the model without effects and custom objects",
        )
    return found


def _write_back(graph: Graph, signature: ExportGraphSignature) -> None:
    """Turn outputs that are new values of inputs into writes to those inputs."""
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    mutated = {
        index: str(spec.target)
        for index, spec in enumerate(signature.output_specs)
        if spec.kind in _MUTATIONS
    }
    if not mutated:
        return
    names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    with graph.inserting_before(output):
        # All copies before all writes: two buffers may have changed places.
        for index in mutated:
            if values[index].op == "placeholder":
                values[index] = _like(graph, torch.ops.aten.clone.default, values[index])
        for index, target in mutated.items():
            _like(graph, torch.ops.aten.copy_.default, inputs[names.get(target, target)], values[index])
    kept = tuple(value for index, value in enumerate(values) if index not in mutated)
    output.args = (kept,)


def _like(graph: Graph, target: Any, first: Node, *others: Node) -> Node:
    """Return a call whose result looks like its first argument."""
    node = graph.call_function(target, (first, *others))
    node.meta = {name: first.meta[name] for name in ("val", "tensor_meta") if name in first.meta}
    return node


def _written_inputs(graph: Graph, signature: ExportGraphSignature) -> tuple[str, ...]:
    """Return a note that names the inputs to which the graph writes."""
    words = {
        InputKind.PARAMETER: "parameter",
        InputKind.BUFFER: "buffer",
        InputKind.CONSTANT_TENSOR: "constant",
    }
    names = {
        spec.arg.name: f"the {words[spec.kind]} {spec.target}"
        for spec in signature.input_specs
        if spec.kind in words
    }
    written = _mutated_placeholders(graph)
    named = [
        f"inputs[{index}] is {names.get(node.name, f'the argument {node.name}')}"
        for index, node in enumerate(graph.find_nodes(op="placeholder"))
        if node.name in written
    ]
    return (f"the program writes to its inputs: {', '.join(named)}",) if named else ()


def _mutated_placeholders(graph: Graph) -> set[str]:
    """Return names of the inputs that an operator writes to, through views as well."""
    base: dict[Node, str] = {}
    written: set[str] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            base[node] = node.name
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        for position, argument in enumerate(schema.arguments):
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            if argument.alias_info is None or not isinstance(given, Node) or given not in base:
                continue
            base[node] = base[given]
            if argument.alias_info.is_write:
                written.add(base[given])
    return written


def _returns(out_spec: Any) -> tuple[str, ...]:
    """Return a note on the structure of the results, where it is more than one flat tuple."""
    places = tuple(_Place(f"out[{index}]") for index in range(out_spec.num_leaves))
    if out_spec in (pytree.tree_structure(places), pytree.tree_structure(None)):
        return ()
    nested = pytree.tree_unflatten(places, out_spec)
    return (f"the program returns {textwrap.shorten(repr(nested), _NOTE_WIDTH)}",)


class _Place(str):
    """Stands for one flat output in the text of a nested result."""

    __repr__ = str.__str__
