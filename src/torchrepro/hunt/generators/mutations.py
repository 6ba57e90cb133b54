"""Programs of the other generators, changed: what a compiler does right in one form may fail in another.

A mutation is a function of `Random` and a `Repro` that returns the changed repro, or None where it does not
apply; eager decides whether the result is a program. Those in `_SETTINGS` are drawn once for a whole batch,
because programs with different settings cannot share a compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.units import CALLS
from torchrepro.hunt.generators import operators
from torchrepro.hunt.generators.tensors import with_layout
from torchrepro.hunt.generators.windows import source_at, window
from torchrepro.hunt.registry import Draw
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.repro import Autocast, Repro

Mutation = Callable[[Random, Repro], Repro | None]
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def generate(draw: Draw) -> Repro | None:
    """Return a program of operators or of a source with one to three mutations."""
    from_source = bool(draw.sources) and draw.shared.random() < 0.4
    place = draw.shared.randrange(len(draw.sources)) if from_source else 0
    setting = draw.shared.choice(_SETTINGS)
    source = source_at(draw.sources[place]) if from_source else None
    repro = window(draw.random, source) if source is not None else operators.generate(draw)
    if repro is None:
        return None
    for mutate in draw.random.sample(_MUTATIONS, draw.random.choice((1, 1, 2, 3))):
        repro = mutate(draw.random, repro) or repro
    return setting(repro)


def _edited(repro: Repro) -> tuple[Graph, list[Node]]:
    """Return a copy of the graph to be changed, and its calls."""
    graph = Graph()
    result = graph.graph_copy(repro.graph.graph, {})
    graph.output(result)
    return graph, [node for node in graph.nodes if node.op in CALLS]


def _with_graph(repro: Repro, graph: Graph) -> Repro:
    return replace(repro, graph=GraphModule(repro.graph, graph, class_name="Graph"))


def in_place(random: Random, repro: Repro) -> Repro | None:
    """Let some ops write into their first operand: `add` becomes `add_`."""
    graph, calls = _edited(repro)
    changed = False
    for node in calls:
        name = f"{getattr(node.target, '__name__', node.target)}_"
        operand = node.args[0] if node.args else None
        if isinstance(operand, Node) and hasattr(torch.Tensor, name) and random.random() < 0.6:
            node.op, node.target, changed = "call_method", name, True
    return _with_graph(repro, graph) if changed else None


def written_input(random: Random, repro: Repro) -> Repro | None:
    """Write a result into an input of the same form at the end, or add one to an input."""
    graph, _ = _edited(repro)
    placeholders = graph.find_nodes(op="placeholder")
    tensors = [
        n for n, v in zip(placeholders, repro.inputs, strict=False) if _is_float(v) and not v.requires_grad
    ]
    if not tensors:
        return None
    target, results = random.choice(tensors), graph.output_node().all_input_nodes
    with graph.inserting_before(graph.output_node()):
        if results and random.random() < 0.5:
            graph.call_method("copy_", (target, random.choice(results)))
        else:
            graph.call_method("add_", (target, 1))
    return _with_graph(repro, graph)


def view(random: Random, repro: Repro) -> Repro | None:
    """Let what reads an input or a result read a view of it."""
    graph, calls = _edited(repro)
    nodes = [*graph.find_nodes(op="placeholder"), *calls]
    node = random.choice(nodes)
    method, args = random.choice(_VIEWS)
    with graph.inserting_after(_last_of_its_kind(graph, node)):
        viewed = graph.call_method(method, (node, *args))
    node.replace_all_uses_with(viewed, delete_user_cb=lambda user: user is not viewed)
    return _with_graph(repro, graph)


def _last_of_its_kind(graph: Graph, node: Node) -> Node:
    """Return the node after which a reader of it may be inserted: inputs come first."""
    return graph.find_nodes(op="placeholder")[-1] if node.op == "placeholder" else node


_VIEWS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("transpose", (0, -1)),
    ("flip", (0,)),
    ("unsqueeze", (0,)),
    ("narrow", (-1, 0, 1)),
    ("select", (0, -1)),
    ("reshape", (-1,)),
    ("contiguous", ()),
    ("clone", ()),
    ("detach", ()),
    ("unfold", (-1, 2, 1)),
)


def returned_view(random: Random, repro: Repro) -> Repro | None:
    """Return an input, a view of it or an intermediate result as well."""
    graph, calls = _edited(repro)
    nodes = [*graph.find_nodes(op="placeholder"), *calls]
    node = random.choice(nodes)
    output = graph.output_node()
    results: Any = output.args[0]
    if not isinstance(results, tuple | list):
        return None
    with graph.inserting_before(output):
        method, args = random.choice(_VIEWS)
        viewed = graph.call_method(method, (node, *args)) if random.random() < 0.6 else node
    output.args = ((*results, viewed),)
    return _with_graph(repro, graph)


def aliased(random: Random, repro: Repro) -> Repro | None:
    """Let two inputs be one tensor, or overlapping parts of one."""
    forms: dict[Any, list[int]] = {}
    for index, value in enumerate(repro.inputs):
        if isinstance(value, torch.Tensor) and value.numel():
            forms.setdefault((value.dtype, value.shape), []).append(index)
    pairs = [indices for indices in forms.values() if len(indices) > 1]
    if not pairs:
        return None
    first, second = random.sample(random.choice(pairs), 2)
    inputs, given = list(repro.inputs), repro.inputs[first]
    if random.random() < 0.5 or given.requires_grad or not given.dim():
        inputs[second] = given
    else:
        whole = torch.cat([given, given[-1:]]).contiguous()
        inputs[first], inputs[second] = whole[:-1], whole[1:]
    return replace(repro, inputs=tuple(inputs))


def other_dtype(random: Random, repro: Repro) -> Repro | None:
    """Give all floating inputs another dtype."""
    if any(True for _ in repro.graph.parameters()) or not any(map(_is_float, repro.inputs)):
        return None
    dtype = random.choice(_FLOATS)

    def cast(value: Any) -> Any:
        return value.detach().to(dtype).requires_grad_(value.requires_grad) if _is_float(value) else value

    return replace(repro, inputs=tuple(map(cast, repro.inputs)))


def other_layout(random: Random, repro: Repro) -> Repro | None:
    """Lay the inputs out differently in memory."""

    def laid_out(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or random.random() < 0.3:
            return value
        return with_layout(random, value.detach()).requires_grad_(value.requires_grad)

    return replace(repro, inputs=tuple(map(laid_out, repro.inputs)))


def backward(random: Random, repro: Repro) -> Repro | None:
    """Ask for gradients of the floating inputs, or for none."""
    asked = not any(isinstance(value, torch.Tensor) and value.requires_grad for value in repro.inputs)
    inputs = clone_inputs(repro.inputs)
    changed = tuple(value.detach().requires_grad_(asked) if _is_float(value) else value for value in inputs)
    return replace(repro, inputs=changed)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.layout is torch.strided


def _autocast(repro: Repro) -> Repro:
    return replace(repro, ambient=replace(repro.ambient, autocast=(Autocast("cpu", "bfloat16"),)))


def _with_option(**options: Any) -> Callable[[Repro], Repro]:
    def changed(repro: Repro) -> Repro:
        given = {name.replace("__", "."): value for name, value in options.items()}
        return replace(repro, compiler=replace(repro.compiler, options={**repro.compiler.options, **given}))

    return changed


def _dynamic(repro: Repro) -> Repro:
    """Capture the graph again, with sizes that are unknown to the compiler."""
    return replace(repro, compiler=replace(repro.compiler, dynamic=True, recapture=True))


_MUTATIONS: tuple[Mutation, ...] = (
    in_place,
    written_input,
    view,
    returned_view,
    aliased,
    other_dtype,
    other_layout,
    backward,
)
_SETTINGS: tuple[Callable[[Repro], Repro], ...] = (
    *(lambda repro: repro,) * 5,
    _autocast,
    _dynamic,
    _dynamic,
    _with_option(cpp__simdlen=256),
    _with_option(split_reductions=False),
    _with_option(epilogue_fusion=False),
    _with_option(aggressive_fusion=True),
)
